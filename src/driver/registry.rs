//! The registry of contexts: one entry for each context of a driver, however often and by whatever call it was obtained.
//!
//! What the driver does to a context it does for the whole process: a call of any thread may end a capture that is open on it. So what the crate
//! knows of a context (open captures, drops that wait for them, the crate's own kernels) stands here once, and not with each [`Context`] value.
//! An entry is found by the driver's identity and its own id of the context
//! ([`cuCtxGetId`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CTX.html)), so that a new context at an old address is another.
//!
//! The list of entries is the crate's only state that is global to the process; it holds none of them alive.
//!
//! [`Context`]: super::Context

use super::capture_state::CaptureState;
use super::deferred_drop::{Destroy, DropError};
use super::recording_id::RecordingId;
use crate::error::{Misuse, Result};
use crate::sys::{CUcontext, CUfunction, CUmemoryPool, CUmodule, CUstream, Driver, DriverId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// What is told of driver calls that fail in drops.
pub type DropHook = Arc<dyn Fn(&DropError) + Send + Sync>;

/// The crate's own kernels on a context: a module, which the entry unloads in the end, and its functions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BuiltinKernels {
    pub(super) module: CUmodule,
    pub(super) scrub: CUfunction,
    pub(super) land: CUfunction,
    pub(super) compare: CUfunction,
}

// SAFETY: the driver synchronises modules and functions (T2 of `docs/DESIGN.md`).
unsafe impl Send for BuiltinKernels {}
// SAFETY: likewise.
unsafe impl Sync for BuiltinKernels {}

/// A context of a driver, as the whole process sees it.
pub(crate) struct ContextEntry {
    key: Key,
    raw: CUcontext,
    /// How many captures are open: what launches look at. Changed under the lock of the state.
    open: AtomicUsize,
    state: Mutex<State>,
    /// Told when a thread has waited for a stream.
    waited: Condvar,
}

// SAFETY: the driver synchronises contexts (T2 of `docs/DESIGN.md`); the rest is behind a lock or atomic.
unsafe impl Send for ContextEntry {}
// SAFETY: likewise.
unsafe impl Sync for ContextEntry {}

/// The driver, and its id of the context.
type Key = (DriverId, u64);

#[derive(Default)]
struct State {
    /// [`Context`](super::Context) values that there are. The last one takes what the entry owns with it.
    values: usize,
    captures: Vec<Arc<CaptureState>>,
    /// Streams that threads wait for on the host now: none of them may begin to be captured meanwhile, which would make the wait end the capture.
    waits: Vec<usize>,
    /// Drops that wait until no capture is open, each with the driver through which it is to be made.
    queue: Vec<(Driver, Destroy)>,
    hook: Option<DropHook>,
    kernels: Option<BuiltinKernels>,
    /// The memory pools that the crate has made on it.
    pools: Vec<usize>,
}

static ENTRIES: Mutex<Vec<Weak<ContextEntry>>> = Mutex::new(Vec::new());

/// The entry of a context, for one more value of it. `id`: the driver's own of the context.
pub(super) fn enter(driver: &Driver, raw: CUcontext, id: u64) -> Arc<ContextEntry> {
    let key = (driver.identity(), id);
    let mut entries = ENTRIES.lock().unwrap_or_else(PoisonError::into_inner);
    entries.retain(|entry| entry.strong_count() > 0);
    let found = entries.iter().filter_map(Weak::upgrade).find(|entry| entry.key == key);
    let entry = found.unwrap_or_else(|| {
        let entry = Arc::new(ContextEntry {
            key,
            raw,
            open: AtomicUsize::new(0),
            state: Mutex::default(),
            waited: Condvar::new(),
        });
        entries.push(Arc::downgrade(&entry));
        entry
    });
    entry.state().values += 1;
    entry
}

impl ContextEntry {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One value of the context goes. The last one carries out what is queued and unloads the crate's kernels, while it still has the context.
    pub(super) fn leave(&self, driver: &Driver) {
        let (failed, hook) = {
            let mut state = self.state();
            state.values -= 1;
            if state.values > 0 {
                return;
            }
            let kernels = state.kernels.take().map(|kernels| (driver.clone(), Destroy::Module(kernels.module)));
            let queue = std::mem::take(&mut state.queue);
            // Under the lock: whoever obtains the context meanwhile waits, and finds the entry empty.
            let done =
                queue.into_iter().chain(kernels).filter_map(|(driver, what)| what.run_in(&driver, self.raw).err());
            (done.collect::<Vec<_>>(), state.hook.clone())
        };
        failed.iter().for_each(|error| report(error, hook.as_ref()));
    }

    /// Its address, by which a thread tells whose capture it has open.
    pub(super) fn address(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }

    /// Whether a capture is open, of whatever thread.
    #[inline]
    pub(super) fn has_open_captures(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// A capture is about to open: drops are queued from now on. Waits for threads that wait for its stream.
    pub(super) fn capture_opens(&self, capture: &Arc<CaptureState>) {
        let mut state = self.state();
        while state.waits.contains(&(capture.stream() as usize)) {
            state = self.waited.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.captures.push(capture.clone());
        self.open.store(state.captures.len(), Ordering::Release);
    }

    /// A capture has closed. If it was the last, the queued drops are carried out.
    pub(super) fn capture_closed(&self, capture: &Arc<CaptureState>) {
        let (failed, hook) = {
            let mut state = self.state();
            state.captures.retain(|open| !Arc::ptr_eq(open, capture));
            self.open.store(state.captures.len(), Ordering::Release);
            if !state.captures.is_empty() {
                return;
            }
            let queue = std::mem::take(&mut state.queue);
            // Under the lock: what is dropped meanwhile on another thread, a parent of what is queued say, comes after it; and no capture opens.
            let done = queue.into_iter().filter_map(|(driver, what)| what.run_in(&driver, self.raw).err());
            (done.collect::<Vec<_>>(), state.hook.clone())
        };
        failed.iter().for_each(|error| report(error, hook.as_ref()));
    }

    /// Waits on the host for a stream, by `wait`: no capture of it opens meanwhile.
    ///
    /// # Errors
    /// [`Misuse::CaptureInProgress`] where one is open: the wait would end it.
    pub(super) fn wait_for_stream<R>(&self, stream: CUstream, wait: impl FnOnce() -> R) -> Result<R> {
        struct Waited<'a>(&'a ContextEntry, usize);
        impl Drop for Waited<'_> {
            fn drop(&mut self) {
                let mut state = self.0.state();
                if let Some(at) = state.waits.iter().position(|stream| *stream == self.1) {
                    state.waits.swap_remove(at);
                }
                drop(state);
                self.0.waited.notify_all();
            }
        }
        let waited = {
            let mut state = self.state();
            state.expect_not_captured(stream)?;
            state.waits.push(stream as usize);
            Waited(self, stream as usize)
        };
        let result = wait();
        drop(waited);
        Ok(result)
    }

    /// Asks the driver something short about a stream: no capture of it opens meanwhile.
    ///
    /// # Errors
    /// [`Misuse::CaptureInProgress`] where one is open: the question would end it.
    pub(super) fn ask_about_stream<R>(&self, stream: CUstream, ask: impl FnOnce() -> R) -> Result<R> {
        let state = self.state();
        state.expect_not_captured(stream)?;
        Ok(ask())
    }

    /// Makes a call that would end any capture of the context: none opens meanwhile.
    ///
    /// # Errors
    /// [`Misuse::CaptureInProgress`] where one is open.
    pub(super) fn while_none_is_open<R>(&self, call: impl FnOnce() -> R) -> Result<R> {
        let state = self.state();
        match state.captures.first() {
            Some(open) => Err(Misuse::CaptureInProgress { stream: open.stream() as usize }.into()),
            None => Ok(call()),
        }
    }

    /// The open capture that a stream takes part in as far as the crate knows, whatever thread has it.
    pub(super) fn capture_with(&self, stream: CUstream) -> Option<Arc<CaptureState>> {
        self.find(|capture| capture.knows(stream))
    }

    /// The open capture of a recording.
    pub(super) fn capture_of_recording(&self, recording: RecordingId) -> Option<Arc<CaptureState>> {
        self.find(|capture| capture.recording() == recording)
    }

    /// An open capture by its serial number.
    pub(super) fn capture_by_serial(&self, serial: u64) -> Option<Arc<CaptureState>> {
        self.find(|capture| capture.serial() == serial)
    }

    /// All that are open.
    pub(super) fn open_captures(&self) -> Vec<Arc<CaptureState>> {
        self.state().captures.clone()
    }

    fn find(&self, which: impl Fn(&CaptureState) -> bool) -> Option<Arc<CaptureState>> {
        if !self.has_open_captures() {
            return None;
        }
        self.state().captures.iter().find(|capture| which(capture)).cloned()
    }

    /// Destroys or frees something, now or when the open captures have closed. A failure goes to the hook.
    pub(super) fn destroy(&self, driver: &Driver, what: Destroy) {
        let (done, hook) = {
            // Held through the call, so that no capture opens on another thread meanwhile.
            let mut state = self.state();
            if !state.captures.is_empty() {
                state.queue.push((driver.clone(), what));
                return;
            }
            (what.run_in(driver, self.raw), state.hook.clone())
        };
        if let Err(error) = done {
            report(&error, hook.as_ref());
        }
    }

    /// A memory pool was made.
    pub(super) fn add_pool(&self, pool: CUmemoryPool) {
        self.state().pools.push(pool as usize);
    }

    /// A memory pool is about to be destroyed.
    pub(super) fn forget_pool(&self, pool: CUmemoryPool) {
        self.state().pools.retain(|known| *known != pool as usize);
    }

    /// Calls `each` for every memory pool that the crate has made, none of which is destroyed meanwhile.
    pub(super) fn for_each_pool(&self, each: impl Fn(CUmemoryPool)) {
        self.state().pools.iter().for_each(|pool| each(*pool as CUmemoryPool));
    }

    /// How many drops wait for an open capture to close.
    pub(super) fn queued_drops(&self) -> usize {
        self.state().queue.len()
    }

    pub(super) fn set_hook(&self, hook: Option<DropHook>) {
        self.state().hook = hook;
    }

    /// Tells of a driver call that failed in a drop, where there is nobody to return it to.
    pub(super) fn report(&self, error: &DropError) {
        let hook = self.state().hook.clone();
        report(error, hook.as_ref());
    }

    /// The crate's own kernels, if they are loaded.
    pub(super) fn kernels(&self) -> Option<BuiltinKernels> {
        self.state().kernels
    }

    /// Keeps kernels that were just loaded, and gives those that count: where another thread was first, its own; then these are unloaded.
    pub(super) fn keep_kernels(&self, driver: &Driver, loaded: BuiltinKernels) -> BuiltinKernels {
        let kept = *self.state().kernels.get_or_insert(loaded);
        if kept.module != loaded.module {
            self.destroy(driver, Destroy::Module(loaded.module));
        }
        kept
    }
}

impl State {
    fn expect_not_captured(&self, stream: CUstream) -> Result<()> {
        match self.captures.iter().find(|capture| capture.knows(stream)) {
            Some(_) => Err(Misuse::CaptureInProgress { stream: stream as usize }.into()),
            None => Ok(()),
        }
    }
}

/// Tells the hook. A hook that panics is a warning: this runs in drops, where a second panic would end the process.
fn report(error: &DropError, hook: Option<&DropHook>) {
    let told = hook.map(|hook| catch_unwind(AssertUnwindSafe(|| hook(error))));
    match told {
        Some(Ok(())) => {}
        Some(Err(_)) => log::warn!("{error}; and the hook for such errors panicked"),
        None => log::warn!("{error}"),
    }
}
