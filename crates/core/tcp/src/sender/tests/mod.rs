//! Traces of single rules, and a simulation of whole transfers.

mod congestion;
mod ecn;
mod harness;
mod loss;
mod path;
mod receiver;
mod rto;
mod sharing;
mod simulation;
mod throughput;
mod timeline;
mod window;
