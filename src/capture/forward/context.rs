//! Forward contexts: the per-batch values that are published around a forward or a replay, for breaks to read live. Each thread has its own.

use std::any::{Any, TypeId};
use std::cell::RefCell;

/// A published forward context.
struct Published {
    type_id: TypeId,
    /// Valid as long as the entry is on the stack.
    context: *const (),
}

thread_local! {
    static CONTEXTS: RefCell<Vec<Published>> = const { RefCell::new(Vec::new()) };
}

/// Publishes a forward context for the time of a call: breaks that run in it read it live, with [`Break::forward_ctx`](crate::Break::forward_ctx)
/// or [`current_forward_ctx`]. Calls nest; the innermost of a type is the one that is found. The previous state is restored on every way out.
///
/// ```
/// use breakable_cuda_graph::{active_forward, current_forward_ctx};
///
/// let outer = active_forward(&1_u32, || {
///     let inner = active_forward(&2_u32, || current_forward_ctx(|found: Option<&u32>| found.copied()));
///     (inner, current_forward_ctx(|found: Option<&u32>| found.copied()))
/// });
/// assert_eq!(outer, (Some(2), Some(1)));
/// assert_eq!(current_forward_ctx(|found: Option<&u32>| found.copied()), None);
/// ```
pub fn active_forward<T: Any, R>(context: &T, call: impl FnOnce() -> R) -> R {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = CONTEXTS.try_with(|contexts| contexts.borrow_mut().truncate(self.0));
        }
    }
    let published = Published { type_id: TypeId::of::<T>(), context: (&raw const *context).cast() };
    // Where the thread is ending and has taken its contexts down, none is found.
    let _restore = CONTEXTS.try_with(|contexts| {
        let mut contexts = contexts.borrow_mut();
        contexts.push(published);
        Restore(contexts.len() - 1)
    });
    call()
}

/// Hands the innermost published forward context of this type to `look`, or `None` where there is none. It reads whatever is published, everywhere: what a
/// segment or an inline break makes of it is the same in all replays, which [`Break::forward_ctx`](crate::Break::forward_ctx) refuses.
pub fn current_forward_ctx<T: Any, R>(look: impl FnOnce(Option<&T>) -> R) -> R {
    let found = find::<T>(usize::MAX);
    // SAFETY: the entry was made from a `&T` that is borrowed until the entry is off the stack, and `look` returns before that.
    look(found.map(|context| unsafe { &*context }))
}

/// How many contexts are published: those outlive whatever begins now.
pub(crate) fn depth() -> usize {
    CONTEXTS.try_with(|contexts| contexts.borrow().len()).unwrap_or(0)
}

/// The innermost published context of the type among the first `depth`.
pub(crate) fn find<T: Any>(depth: usize) -> Option<*const T> {
    let found = CONTEXTS.try_with(|contexts| {
        let contexts = contexts.borrow();
        let contexts = &contexts[..depth.min(contexts.len())];
        contexts.iter().rev().find(|entry| entry.type_id == TypeId::of::<T>()).map(|entry| entry.context.cast())
    });
    found.ok().flatten()
}
