"""Deployment of a federation between organisations: agreement, messages, server and clients."""
