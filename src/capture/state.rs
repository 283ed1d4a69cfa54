//! A capture's life.

use crate::error::{Error, Result};

/// Where a capture is in its life. It goes forward only: `New`, `Recording`, then `Recorded` or `Poisoned`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum State {
    /// Nothing recorded yet.
    New,
    /// Its forward is running.
    Recording,
    /// It can be replayed.
    Recorded,
    /// Its recording failed.
    Poisoned,
}

impl State {
    /// A recording begins.
    pub(crate) fn begin(self) -> Result<State> {
        match self {
            State::New => Ok(State::Recording),
            State::Recording => Err(Error::NestedCapture),
            State::Recorded => Err(Error::AlreadyRecorded),
            State::Poisoned => Err(Error::Poisoned),
        }
    }

    /// The recording has ended.
    pub(crate) fn end(self, well: bool) -> State {
        match (self, well) {
            (State::Recording, true) => State::Recorded,
            _ => State::Poisoned,
        }
    }

    /// Whether it can be replayed.
    pub(crate) fn replayable(self) -> Result<()> {
        match self {
            State::Recorded => Ok(()),
            State::Poisoned => Err(Error::Poisoned),
            State::New | State::Recording => Err(Error::NotRecorded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::State::{self, New, Poisoned, Recorded, Recording};
    use crate::error::Error;

    #[test]
    fn a_capture_is_recorded_once_and_replayed_only_then() {
        assert!(matches!(New.begin(), Ok(Recording)));
        assert!(matches!(Recording.begin(), Err(Error::NestedCapture)));
        assert!(matches!(Recorded.begin(), Err(Error::AlreadyRecorded)));
        assert!(matches!(Poisoned.begin(), Err(Error::Poisoned)));
        assert_eq!(Recording.end(true), Recorded);
        for state in [New, Recording, Recorded, Poisoned] {
            assert_eq!(State::end(state, false), Poisoned);
        }
        assert!(Recorded.replayable().is_ok());
        assert!(matches!(New.replayable(), Err(Error::NotRecorded)));
        assert!(matches!(Poisoned.replayable(), Err(Error::Poisoned)));
    }
}
