"""What other tools call our settings: PFLlib and HtFLlib, Flower, fluke and others; the names are theirs.

A name is looked for in lower case, with _ for - and for spaces.
"""

from __future__ import annotations

OURS: dict[str, str] = {  # our setting: names of others, with spaces between
    "algorithm": "algo method strategy aggregator aggregation fl_algorithm federated_algorithm server_strategy",
    "dataset": "data dataset_name data_name ds data_set",
    "partition": (
        "partitioner partitioning distribution data_distribution split_type heterogeneity niid noniid iid "
        "partition_method sampling_method"
    ),
    "partition.alpha": "dirichlet_alpha dir_alpha dirichlet alpha_dirichlet concentration dirichlet_beta",
    "partition.classes_per_client": "class_per_client shards shards_per_client n_classes_per_client classes_per_node",
    "models": ("model net network networks model_name model_family model_heterogeneity architecture arch backbone"),
    "auxiliary": "meme student student_model teacher global_model",
    "feature_dim": "d dim features_dim feature_size feature_length emb_dim embedding_dim embedding_size hidden_dim "
    "proto_dim prototype_dim latent_dim",
    "clients": (
        "m num_clients n_clients nclients nc num_users n_users num_nodes num_supernodes num_partitions n_parties "
        "num_parties client_num total_clients client_num_in_total client_count number_of_clients"
    ),
    "participation": (
        "join_ratio jr frac fraction fraction_fit fraction_train eligible_perc sample_ratio client_fraction c "
        "participation_rate sampling_rate clients_per_round client_num_per_round num_clients_per_round min_fit_clients"
    ),
    "rounds": (
        "r num_rounds n_rounds nrounds global_rounds global_round gr num_server_rounds server_rounds global_epochs "
        "communication_rounds comm_rounds comm_round rounds_num max_rounds total_rounds round_num t_rounds"
    ),
    "epochs": "e local_epochs local_epoch local_ep ls n_epochs num_epochs epoch client_epochs local_iterations "
    "local_training_epochs epochs_per_round",
    "batch_size": "b batch bs lbs local_bs local_batch_size batchsize train_batch_size client_batch_size",
    "lr": (
        "learning_rate local_learning_rate local_lr client_lr client_learning_rate eta optimizer_lr lr_client step_size"
    ),
    "lr_schedule": (
        "scheduler lr_scheduler learning_rate_schedule learning_rate_decay lr_decay ld schedule sched "
        "learning_rate_decay_gamma lr_decay_gamma"
    ),
    "lr_schedule.warmup": "warmup_rounds warmup_epochs",
    "momentum": "sgd_momentum mom",
    "weight_decay": "wd l2 l2_reg decay_weight weight_decay_rate",
    "optimiser": "optimizer optim opt local_optimizer client_optimizer client_optimiser",
    "label_smoothing": "smoothing smooth",
    "clip": "grad_clip gradient_clip clip_grad clip_norm max_norm max_grad_norm clip_grad_norm clipping_norm clipping",
    "augment": "augmentation augmentations data_augmentation transform transforms aug",
    "train": "train_ratio train_size train_split train_fraction test_size test_split test_ratio client_split",
    "validation": "val val_size val_split val_ratio validation_split validation_size client_val_split val_fraction",
    "seed": "random_state random_seed manual_seed rng_seed rand_seed",
    "early_stopping": "patience auto_break early_stop",
    "evaluate": "fraction_evaluate fraction_eval eval_clients",
    "evaluate_every": "eval_every eval_gap eg eval_interval test_every evaluate_interval eval_freq log_every eval_each",
    "quorum": "min_available_clients min_clients accept_failures min_replies",
    "deadline": "timeout round_timeout round_deadline",
    "device": "dev gpu gpus cuda gpu_id device_id did use_cuda use_gpu",
    "precision": "dtype amp mixed_precision fp16 bf16 half",
    "tracker": "logger wandb tensorboard tracking use_wandb",
    "algorithm.lam": "lambda lamda lambd lambda_ lamb proto_weight lam_proto",
    "algorithm.tau": "margin margin_threshold margin_threthold",
    "algorithm.server_epochs": "se server_epoch",
    "algorithm.server_lr": "slr server_learning_rate",
}

REMARKS: dict[str, str] = {  # names of what is no setting, and what to do instead
    "tracker": "who follows a run is tracker=… of pn.run, and of the commands.",
    **dict.fromkeys(("num_classes", "n_classes", "ncl", "nb_classes"), "the data say how many classes there are."),
    **dict.fromkeys(
        ("out", "output", "output_dir", "out_dir", "save_dir", "log_dir", "results", "results_dir", "save_folder_name"),
        "where runs are kept is the option --out, and out=… of pn.run.",
    ),
    **dict.fromkeys(
        ("workers", "num_workers", "n_workers", "n_jobs", "processes", "num_cpus"),
        "how many processes are used is the option --workers, and workers=… of pn.run.",
    ),
    **dict.fromkeys(
        ("engine", "backend", "client_resources"), "where clients live is the option --engine, and engine=… of pn.run."
    ),
    **dict.fromkeys(
        ("seeds", "times", "n_seeds", "num_seeds", "repeats", "trials", "n_runs"),
        "one run has one seed=…; `compare` and `sweep` take several, as seeds=0,1,2.",
    ),
    **dict.fromkeys(
        ("loss", "criterion", "loss_fn"), "the loss is a part of the algorithm; `protonorm list algorithms` has them."
    ),
    **dict.fromkeys(
        ("pretrained", "weights"),
        "networks begin with random weights; one of your own, file.py:function, may load others.",
    ),
}

OTHERS: dict[str, str] = {theirs: ours for ours, names in OURS.items() for theirs in names.split()}


def plain_name(name: str) -> str:
    """Write a name as these tables do."""
    return name.strip().lower().replace("-", "_").replace(" ", "_")
