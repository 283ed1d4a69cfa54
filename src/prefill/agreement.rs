//! Whether a runner replays, and what all ranks do alike.

use super::dispatch::Choice;
use super::error::PrefillError;
use super::options::off_by_environment;
use super::ranks::{Ranks, RanksError};
use super::reason::EagerReason;
use crate::error::{Error, Result};

/// Whether a runner replays, with the ranks that must do the same.
pub(super) struct Agreement {
    ranks: Box<dyn Ranks>,
    power: Power,
    /// Of the last capture that failed while a batch was run, or of the exchange between ranks.
    failure: Option<Error>,
    /// Whether the runner's captures are to go, as it gave up since this was last asked.
    gave_up: bool,
}

/// Whether the runner replays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Power {
    On,
    /// By the environment, or by a call. Other ranks may be on.
    Off,
    /// A capture failed: off on all ranks.
    Failed {
        bucket: usize,
    },
    /// The ranks can't reach each other any more.
    Alone,
}

impl Agreement {
    pub(super) fn new(ranks: Box<dyn Ranks>, on: bool) -> Agreement {
        let power = if on && !off_by_environment() { Power::On } else { Power::Off };
        Agreement { ranks, power, failure: None, gave_up: false }
    }

    pub(super) fn power(&self) -> Power {
        self.power
    }

    pub(super) fn is_on(&self) -> bool {
        self.power == Power::On
    }

    /// Whether there are other ranks.
    pub(super) fn has_others(&self) -> bool {
        self.ranks.size() > 1
    }

    pub(super) fn turn_off(&mut self) {
        self.power = Power::Off;
    }

    /// Also after a capture failed; not where the environment says that runners are off, nor after the ranks have lost each other.
    pub(super) fn turn_on(&mut self) {
        if !off_by_environment() && self.power != Power::Alone {
            self.power = Power::On;
            self.failure = None;
        }
    }

    /// A capture failed on some rank: all run eagerly.
    pub(super) fn fail(&mut self, bucket: usize) {
        log::error!("the capture of bucket {bucket} failed on some rank: every batch runs eagerly from now on");
        self.power = Power::Failed { bucket };
        self.gave_up = true;
    }

    /// The ranks can't reach each other: none can know what the others do, so this one runs eagerly from now on.
    fn lose(&mut self, error: RanksError) {
        log::error!("{error}: every batch runs eagerly from now on");
        self.power = Power::Alone;
        self.failure = Some(error.into());
        self.gave_up = true;
    }

    /// Whether it gave up since this was last asked.
    pub(super) fn take_gave_up(&mut self) -> bool {
        std::mem::take(&mut self.gave_up)
    }

    pub(super) fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    pub(super) fn note_failure(&mut self, error: Error) {
        self.failure = Some(error);
    }

    /// What every rank does with its batch. `sound`: whether this rank's can be run at all. `keys`: whether captures are made under several. `own`: what
    /// this rank would do with so many rows, the most of any rank.
    pub(super) fn choose(
        &mut self,
        rows: usize,
        sound: bool,
        keys: bool,
        own: impl FnOnce(bool, usize) -> Choice,
    ) -> Choice {
        match self.power {
            Power::Failed { bucket } => return Choice::Eager(EagerReason::CaptureFailed { bucket }),
            Power::Alone => return Choice::Eager(EagerReason::RanksDisagree),
            Power::On | Power::Off => {}
        }
        let on = self.is_on();
        if self.ranks.size() == 1 {
            return own(on, rows);
        }
        let agreed = self.max_of(rows as u64).and_then(|rows| {
            let own = own(on, rows as usize);
            let replays = sound && matches!(own, Choice::Replay(_));
            let all = self.is_set_on_all(replays)?;
            let alike = match &own {
                Choice::Replay(bucket) if all && keys => self.equal(bucket.slot as u64)?,
                _ => true,
            };
            Ok((all && alike, own))
        });
        match agreed {
            Ok((true, own)) | Ok((false, own @ Choice::Eager(_))) => own,
            Ok((false, Choice::Replay(_))) => Choice::Eager(EagerReason::RanksDisagree),
            Err(error) => {
                self.lose(error);
                Choice::Eager(EagerReason::RanksDisagree)
            }
        }
    }

    /// Whether the flag is set on every rank.
    pub(super) fn all(&mut self, flag: bool) -> Result<bool, RanksError> {
        self.is_set_on_all(flag).inspect_err(|error| self.lose(error.clone()))
    }

    /// Whether every rank is on.
    pub(super) fn all_on(&mut self) -> Result<bool> {
        match self.power {
            Power::Failed { .. } | Power::Alone => return Err(PrefillError::TurnedOff.into()),
            Power::On | Power::Off => {}
        }
        Ok(self.all(self.is_on())?)
    }

    /// That every rank has captured the bucket, and the same list. `own`: this rank's.
    pub(super) fn expect_captured(&mut self, bucket: usize, own: Option<u64>) -> Result<()> {
        if self.ranks.size() == 1 {
            return Ok(());
        }
        let agreed = self.is_set_on_all(own.is_some()).and_then(|all| match own {
            Some(hash) if all => Ok((true, self.equal(hash)?)),
            _ => Ok((false, true)),
        });
        match agreed {
            Ok((true, true)) => Ok(()),
            Ok((true, false)) => Err(PrefillError::RecordingsDiffer { bucket }.into()),
            Ok((false, _)) => Err(PrefillError::OtherRankFailed { bucket }.into()),
            Err(error) => {
                self.lose(error.clone());
                Err(error.into())
            }
        }
    }

    /// That all ranks' runners were made of these numbers.
    pub(super) fn expect_alike(&self, numbers: impl IntoIterator<Item = u64>) -> Result<()> {
        if self.ranks.size() == 1 {
            return Ok(());
        }
        let mix = |hash: u64, number: u64| (hash ^ number).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        let hash = numbers.into_iter().fold(0xcbf2_9ce4_8422_2325_u64, mix);
        if self.equal(hash)? { Ok(()) } else { Err(PrefillError::RunnersDiffer.into()) }
    }

    /// Whether every rank has the same number: the largest is then also the smallest.
    fn equal(&self, number: u64) -> Result<bool, RanksError> {
        let largest = self.max_of(number)?;
        let smallest = !self.max_of(!number)?;
        Ok(largest == smallest)
    }

    /// The largest number of any rank: at least this rank's own, whoever answers.
    fn max_of(&self, own: u64) -> Result<u64, RanksError> {
        match self.ranks.max(own)? {
            answer if answer < own => Err(RanksError::WrongAnswer { call: "max", own, answer, of: "largest" }),
            largest => Ok(largest),
        }
    }

    /// Whether the flag is set on every rank, this one included, whoever answers.
    fn is_set_on_all(&self, own: bool) -> Result<bool, RanksError> {
        match self.ranks.all(own)? {
            true if !own => Err(RanksError::WrongAnswer { call: "all", own: 0, answer: 1, of: "smallest" }),
            all => Ok(all),
        }
    }
}
