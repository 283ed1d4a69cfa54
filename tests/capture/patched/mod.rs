//! Patched and inline breaks: one exec between live breaks, with bodies that are patched in.

mod attributes;
mod configs;
mod faults;
mod inline;
mod model;
mod paths;
mod product;
mod refused;
mod shared;
mod soak;
mod ways;
