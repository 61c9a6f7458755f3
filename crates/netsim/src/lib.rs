//! Deterministic simulation of pairs of stacks over an imperfect wire (tests only).
