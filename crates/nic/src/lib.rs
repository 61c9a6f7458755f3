//! A software NIC with header split, RSS, ntuple rules and per-queue page pools.
