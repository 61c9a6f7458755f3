//! Receive steering as pure decisions: RSS, ntuple rules, header split.
