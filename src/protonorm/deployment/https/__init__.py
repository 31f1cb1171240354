"""Transport of a federation: two HTTPS calls with mutual TLS.

A client asks for work (`GET /v1/work`, held by the server for at most 20 seconds) and posts its answer
(`POST /v1/answer`). Its certificate, signed by the federation's own authority for the key on the roster, is its
identity. Frames travel as they are; no one's code does.

    client: client.py      server: listener.py (connections and limits), server.py (calls), serving.py (rounds)
"""
