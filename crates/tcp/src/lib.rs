//! A sans-IO TCP over payload that it cannot read.
