"""The features of a cluster that clients ask for by name (KIP-584), and the levels served here."""

from tidelog.protocol.api_versions import Feature

TRANSACTION_VERSION = "transaction.version"
TRANSACTION_VERSION_FEATURE = Feature(0, 2, 2)
"""Every transaction has an epoch of its own, and partitions are verified (KIP-890)."""

ELR_VERSION = "eligible.leader.replicas.version"
ELR_VERSION_FEATURE = Feature(0, 1, 1)
"""Partitions have eligible leader replicas (KIP-966)."""

SHARE_VERSION = "share.version"
SHARE_VERSION_FEATURE = Feature(0, 2, 2)
"""There are share groups (KIP-932), which write dead letters (KIP-1191)."""
