//! Ownership without a type.

use std::any::Any;
use std::sync::Arc;

/// Whatever must stay alive as long as something else is used: the owner of a borrowed handle, what a graph's nodes refer to.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;

/// Adds to a list of what is kept, unless it is there.
pub(crate) fn keep(kept: &mut Vec<KeepAlive>, what: &KeepAlive) {
    // The latest are the likeliest: a layer's weights are used in runs.
    if !kept.iter().rev().any(|held| Arc::ptr_eq(held, what)) {
        kept.push(what.clone());
    }
}
