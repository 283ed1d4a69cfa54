//! A capture's life.

use crate::error::{Misuse, Result};

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
            State::Recording => Err(Misuse::NestedCapture.into()),
            State::Recorded => Err(Misuse::AlreadyRecorded.into()),
            State::Poisoned => Err(Misuse::Poisoned.into()),
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
            State::Poisoned => Err(Misuse::Poisoned.into()),
            State::New | State::Recording => Err(Misuse::NotRecorded.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::State::{self, New, Poisoned, Recorded, Recording};
    use crate::error::{Error, Misuse};

    #[test]
    fn a_capture_is_recorded_once_and_replayed_only_then() {
        assert!(matches!(New.begin(), Ok(Recording)));
        assert!(matches!(Recording.begin(), Err(Error::Misuse(Misuse::NestedCapture))));
        assert!(matches!(Recorded.begin(), Err(Error::Misuse(Misuse::AlreadyRecorded))));
        assert!(matches!(Poisoned.begin(), Err(Error::Misuse(Misuse::Poisoned))));
        assert_eq!(Recording.end(true), Recorded);
        for state in [New, Recording, Recorded, Poisoned] {
            assert_eq!(State::end(state, false), Poisoned);
        }
        assert!(Recorded.replayable().is_ok());
        assert!(matches!(New.replayable(), Err(Error::Misuse(Misuse::NotRecorded))));
        assert!(matches!(Poisoned.replayable(), Err(Error::Misuse(Misuse::Poisoned))));
    }
}
