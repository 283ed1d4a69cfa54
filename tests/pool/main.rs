//! Exact memory: traces, plans, planned captures, release and restore, loans.

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod drops;
mod in_flight;
mod lend;
mod lifetimes;
mod planned;
mod release;
mod room;
mod stack;
mod traces;
