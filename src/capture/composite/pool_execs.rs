//! What the captures of one pool have together: execs that take turns, and the streams on which bodies are recorded.

use super::shared::SharedExecs;
use crate::driver::{Context, Stream, StreamOptions};
use crate::error::Result;
use crate::pool::PoolShared;
use std::sync::{Arc, Mutex, PoisonError};

/// What the captures of one pool have together. It lives in the pool's extension slot.
#[derive(Default)]
pub(crate) struct PoolExecs {
    /// For captures that ask for them.
    shared: Arc<SharedExecs>,
    /// Where bodies of patched breaks are recorded; one for each priority.
    body_streams: Mutex<Vec<(i32, Stream)>>,
}

impl PoolExecs {
    /// Those of the pool.
    pub(crate) fn of(pool: &PoolShared) -> Result<&PoolExecs> {
        pool.extension().get_or_init(PoolExecs::default)
    }

    /// The execs that captures may share.
    pub(super) fn shared(&self) -> Arc<SharedExecs> {
        self.shared.clone()
    }

    /// A stream to record bodies on, whose nodes get the priority of another: one for all captures, since streams take device memory. To be used
    /// under the pool's replay lock.
    pub(crate) fn body_stream(&self, context: &Context, of: &Stream) -> Result<Stream> {
        let priority = of.priority()?;
        let mut streams = self.body_streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, stream)) = streams.iter().find(|(of, _)| *of == priority) {
            return Ok(stream.clone());
        }
        let stream = Stream::with_options(context, StreamOptions::default().priority(priority))?;
        streams.push((priority, stream.clone()));
        Ok(stream)
    }
}
