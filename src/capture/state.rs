//! A capture's life.

use crate::error::{Misuse, Result};

/// Where a capture is in its life. It goes forward only: from `New` to `Poisoned` when its recording begins, and to `Recorded` when that has ended well.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum State {
    /// Nothing recorded yet.
    New,
    /// It can be replayed.
    Recorded,
    /// Its recording failed, or has not ended.
    Poisoned,
}

impl State {
    /// Whether a recording can begin.
    pub(crate) fn begin(self) -> Result<()> {
        match self {
            State::New => Ok(()),
            State::Recorded => Err(Misuse::AlreadyRecorded.into()),
            State::Poisoned => Err(Misuse::Poisoned.into()),
        }
    }

    /// Whether it can be replayed.
    pub(crate) fn replayable(self) -> Result<()> {
        match self {
            State::Recorded => Ok(()),
            State::Poisoned => Err(Misuse::Poisoned.into()),
            State::New => Err(Misuse::NotRecorded.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::State::{New, Poisoned, Recorded};
    use crate::error::{Error, Misuse};

    #[test]
    fn a_capture_is_recorded_once_and_replayed_only_then() {
        assert!(New.begin().is_ok());
        assert!(matches!(Recorded.begin(), Err(Error::Misuse(Misuse::AlreadyRecorded))));
        assert!(matches!(Poisoned.begin(), Err(Error::Misuse(Misuse::Poisoned))));
        assert!(Recorded.replayable().is_ok());
        assert!(matches!(New.replayable(), Err(Error::Misuse(Misuse::NotRecorded))));
        assert!(matches!(Poisoned.replayable(), Err(Error::Misuse(Misuse::Poisoned))));
    }
}
