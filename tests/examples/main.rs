//! The examples, run as tests: their operations against plain Rust, and each of them whole.

// Each example comes with its own copy of what the examples share.
#![allow(clippy::duplicate_mod)]

#[path = "../support/mod.rs"]
mod support;

mod decoder;
mod demo;
mod embed;
mod memory_plan;
mod small;
