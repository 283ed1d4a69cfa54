//! What ranks agree on. An engine implements [`Ranks`] over what it has (NCCL, gloo, MPI); here are one rank, and threads of one process.

use std::error::Error;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Several runners that must do the same. Each call but [`rank`](Ranks::rank) and [`size`](Ranks::size) is collective: every rank makes it, in the
/// same order, and all get the same answer.
pub trait Ranks: Send {
    /// This rank's number, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// Whether the flag is set on every rank: its minimum.
    ///
    /// # Errors
    /// When the ranks can't reach each other: an implementation must not wait for ever.
    fn all(&self, flag: bool) -> Result<bool, RanksError>;

    /// The largest count of any rank.
    ///
    /// # Errors
    /// As for [`all`](Ranks::all).
    fn max(&self, count: u64) -> Result<u64, RanksError>;

    /// Waits until every rank is here.
    ///
    /// # Errors
    /// As for [`all`](Ranks::all).
    fn barrier(&self) -> Result<(), RanksError>;
}

/// Why ranks can't agree.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RanksError {
    /// A rank is no longer there.
    #[error("rank {rank} is gone, and the others can't go on together: start all ranks anew, or turn the runners off")]
    Gone {
        /// Its number.
        rank: usize,
    },
    /// Ranks did not come.
    #[error(
        "{missing} of the ranks did not come within {waited:?}: all must make their runner, capture and run batches together"
    )]
    TimedOut {
        /// How long the others waited.
        waited: Duration,
        /// How many did not come.
        missing: usize,
    },
    /// Ranks are at different calls.
    #[error("one rank is at `{one}` while another is at `{other}`: they must make the same calls in the same order")]
    Diverged {
        /// A call.
        one: &'static str,
        /// Another.
        other: &'static str,
    },
    /// An implementation answered what can't be, given this rank's own number: what the ranks do next would not be alike.
    #[error(
        "`{call}` answered {answer} where this rank gave {own}: it must give every rank the {of} of what all of them gave"
    )]
    WrongAnswer {
        /// The call.
        call: &'static str,
        /// What this rank gave.
        own: u64,
        /// What came back.
        answer: u64,
        /// What it should have been.
        of: &'static str,
    },
    /// What an engine's implementation reports.
    #[error("the exchange between ranks failed: {0}")]
    Other(#[source] Arc<dyn Error + Send + Sync>),
}

/// One rank, which always agrees with itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OneRank;

impl Ranks for OneRank {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all(&self, flag: bool) -> Result<bool, RanksError> {
        Ok(flag)
    }

    fn max(&self, count: u64) -> Result<u64, RanksError> {
        Ok(count)
    }

    fn barrier(&self) -> Result<(), RanksError> {
        Ok(())
    }
}

/// A rank of several threads of one process, each with its device. When one is dropped, makes another call than the rest, or does not come in
/// time, all of them get an error, from then on.
///
/// ```
/// use breakable_cuda_graph::prefill::{Ranks, ThreadRank};
///
/// let ranks = ThreadRank::group(2);
/// let most = std::thread::scope(|scope| {
///     let threads = ranks.into_iter().map(|rank| scope.spawn(move || rank.max(10 + rank.rank() as u64)));
///     threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<_>, _>>()
/// })?;
/// assert_eq!(most, [11, 11]);
/// # Ok::<(), breakable_cuda_graph::prefill::RanksError>(())
/// ```
#[derive(Debug)]
pub struct ThreadRank {
    rank: usize,
    meeting: Arc<Meeting>,
}

#[derive(Debug)]
struct Meeting {
    size: usize,
    patience: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Rounds that are over.
    round: u64,
    arrived: usize,
    call: &'static str,
    largest: u64,
    /// Of the last round. Stays until every rank has come to the next.
    result: u64,
    broken: Option<RanksError>,
}

impl ThreadRank {
    /// How long ranks wait for each other unless told otherwise.
    pub const PATIENCE: Duration = Duration::from_secs(60);

    /// The ranks of a group, to be moved to their threads.
    pub fn group(size: usize) -> Vec<ThreadRank> {
        ThreadRank::group_with(size, ThreadRank::PATIENCE)
    }

    /// The ranks of a group that wait this long for each other. It must be more than a capture takes.
    pub fn group_with(size: usize, patience: Duration) -> Vec<ThreadRank> {
        let state = Mutex::new(State::default());
        let meeting = Arc::new(Meeting { size, patience, state, changed: Condvar::new() });
        (0..size).map(|rank| ThreadRank { rank, meeting: meeting.clone() }).collect()
    }

    /// Comes to a round with a count, and gets the largest.
    fn meet(&self, call: &'static str, count: u64) -> Result<u64, RanksError> {
        let Meeting { size, patience, changed, .. } = &*self.meeting;
        let mut state = self.state();
        if let Some(broken) = &state.broken {
            return Err(broken.clone());
        }
        if state.arrived == 0 {
            (state.call, state.largest) = (call, count);
        } else if state.call != call {
            let error = RanksError::Diverged { one: state.call, other: call };
            return Err(self.break_up(state, error));
        }
        state.largest = state.largest.max(count);
        state.arrived += 1;
        if state.arrived == *size {
            (state.arrived, state.result) = (0, state.largest);
            state.round += 1;
            changed.notify_all();
            return Ok(state.result);
        }
        let (round, since) = (state.round, Instant::now());
        loop {
            let left = patience.saturating_sub(since.elapsed());
            state = changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            if state.round != round {
                return Ok(state.result);
            }
            if let Some(broken) = &state.broken {
                return Err(broken.clone());
            }
            if since.elapsed() >= *patience {
                let missing = size - state.arrived;
                return Err(self.break_up(state, RanksError::TimedOut { waited: *patience, missing }));
            }
        }
    }

    fn break_up(&self, mut state: MutexGuard<'_, State>, error: RanksError) -> RanksError {
        let error = state.broken.get_or_insert(error).clone();
        self.meeting.changed.notify_all();
        error
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.meeting.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ranks for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.meeting.size
    }

    fn all(&self, flag: bool) -> Result<bool, RanksError> {
        Ok(self.meet("all", u64::from(!flag))? == 0)
    }

    fn max(&self, count: u64) -> Result<u64, RanksError> {
        self.meet("max", count)
    }

    fn barrier(&self) -> Result<(), RanksError> {
        self.meet("barrier", 0).map(drop)
    }
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        let error = RanksError::Gone { rank: self.rank };
        self.break_up(self.state(), error);
    }
}

#[cfg(test)]
mod tests {
    use super::{Ranks, RanksError, ThreadRank};
    use std::thread;
    use std::time::Duration;

    fn each<T: Send>(ranks: Vec<ThreadRank>, run: impl Fn(ThreadRank) -> T + Sync) -> Vec<T> {
        let run = &run;
        thread::scope(|scope| {
            let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || run(rank))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn they_agree() {
        let answers = each(ThreadRank::group(4), |rank| {
            let mut answers = Vec::new();
            for round in 0..200 {
                let most = rank.max(round * 10 + rank.rank() as u64).expect("an answer");
                let all = rank.all(round % 4 != rank.rank() as u64).expect("an answer");
                rank.barrier().expect("all are here");
                answers.push((most, all, rank.all(true).expect("an answer")));
            }
            answers
        });
        for answer in answers {
            assert!(answer.iter().enumerate().all(|(round, got)| *got == (round as u64 * 10 + 3, false, true)));
        }
    }

    #[test]
    fn nobody_waits_for_one_that_is_gone() {
        let answers = each(ThreadRank::group(3), |rank| if rank.rank() == 1 { Ok(()) } else { rank.barrier() });
        let gone = |answer: &Result<(), RanksError>| matches!(answer, Err(RanksError::Gone { rank: 1 }));
        assert!(gone(&answers[0]) && gone(&answers[2]), "{answers:?}");
    }

    #[test]
    fn nobody_waits_for_ever() {
        let ranks = ThreadRank::group_with(2, Duration::from_millis(20));
        let late = ranks[0].barrier();
        assert!(matches!(late, Err(RanksError::TimedOut { missing: 1, .. })), "{late:?}");
        assert!(ranks[1].barrier().is_err(), "the other is told when it comes");
    }

    #[test]
    fn different_calls_are_told() {
        let answers = each(ThreadRank::group(2), |rank| {
            let answer = if rank.rank() == 0 { rank.barrier() } else { rank.max(1).map(drop) };
            (answer, rank)
        });
        assert!(answers.iter().all(|(answer, _)| matches!(answer, Err(RanksError::Diverged { .. }))), "{answers:?}");
    }
}
