//! Queues of work. A task runs when something waits for it, or earlier: the seed decides, among the orders that its dependencies allow.

use super::ids::TaskId;
use super::work::Work;
use std::collections::{BTreeMap, BTreeSet};

/// Work that waits for other work.
struct Task {
    work: Work,
    context: usize,
    /// Tasks that must have run.
    after: Vec<TaskId>,
    waiting_for: usize,
    /// Tasks that wait for this one.
    before: Vec<TaskId>,
}

/// How a seed leans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lean {
    /// As late as possible: only what is waited for runs, when it is waited for.
    Late,
    /// As early as possible: everything runs when it is enqueued.
    Early,
    /// Any ready task, at any wait.
    Any,
    /// Now and then a ready task when something is enqueued, any at a wait.
    Mixed,
}

/// All tasks that have not run.
pub(super) struct Tasks {
    pending: BTreeMap<TaskId, Task>,
    ready: Vec<TaskId>,
    next: TaskId,
    random: u64,
    lean: Lean,
}

impl Tasks {
    pub(super) fn new(seed: u64) -> Tasks {
        let lean = [Lean::Late, Lean::Any, Lean::Mixed, Lean::Early][(seed % 4) as usize];
        Tasks {
            pending: BTreeMap::new(),
            ready: Vec::new(),
            next: 1,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            lean,
        }
    }

    /// A number below `bound`.
    fn draw(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 33) as usize) % bound.max(1)
    }

    /// Adds work that comes after other work.
    pub(super) fn add(&mut self, context: usize, after: impl IntoIterator<Item = TaskId>, work: Work) -> TaskId {
        let id = self.next;
        self.next += 1;
        let mut after: Vec<TaskId> = after.into_iter().filter(|task| self.pending.contains_key(task)).collect();
        after.sort_unstable();
        after.dedup();
        for earlier in &after {
            if let Some(task) = self.pending.get_mut(earlier) {
                task.before.push(id);
            }
        }
        if after.is_empty() {
            self.ready.push(id);
        }
        let waiting_for = after.len();
        self.pending.insert(id, Task { work, context, after, waiting_for, before: Vec::new() });
        id
    }

    /// How many tasks may run right after something was enqueued.
    pub(super) fn eagerness(&mut self) -> usize {
        match self.lean {
            Lean::Late | Lean::Any => 0,
            Lean::Early => usize::MAX,
            Lean::Mixed => self.draw(3),
        }
    }

    pub(super) fn is_pending(&self, task: TaskId) -> bool {
        self.pending.contains_key(&task)
    }

    /// What is found in the work of a task that has not run.
    pub(super) fn find<T>(&self, look: impl Fn(&Work) -> Option<T>) -> Option<T> {
        self.pending.values().find_map(|task| look(&task.work))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// All tasks of a context, or of all.
    pub(super) fn of_context(&self, context: Option<usize>) -> Vec<TaskId> {
        let chosen = self.pending.iter().filter(|(_, task)| context.is_none_or(|context| task.context == context));
        chosen.map(|(id, _)| *id).collect()
    }

    /// What must run before these have, themselves included.
    pub(super) fn needed(&self, targets: &[TaskId]) -> BTreeSet<TaskId> {
        let mut needed = BTreeSet::new();
        let mut look: Vec<TaskId> = targets.iter().copied().filter(|task| self.is_pending(*task)).collect();
        while let Some(id) = look.pop() {
            if needed.insert(id)
                && let Some(task) = self.pending.get(&id)
            {
                look.extend(task.after.iter().filter(|task| self.is_pending(**task)));
            }
        }
        needed
    }

    /// Takes a ready task to run: one that is needed, where the seed leans late; any otherwise. Tell [`done`](Tasks::done) when it has run.
    pub(super) fn take(&mut self, needed: Option<&BTreeSet<TaskId>>) -> Option<(TaskId, usize, Work)> {
        let only_needed = needed.filter(|_| self.lean == Lean::Late);
        let choices: Vec<usize> = (0..self.ready.len())
            .filter(|&at| only_needed.is_none_or(|needed| needed.contains(&self.ready[at])))
            .collect();
        if choices.is_empty() {
            return None;
        }
        let choice = choices[self.draw(choices.len())];
        let id = self.ready.remove(choice);
        let task = self.pending.get_mut(&id)?;
        Some((id, task.context, std::mem::replace(&mut task.work, Work::Nothing)))
    }

    /// The task has run.
    pub(super) fn done(&mut self, id: TaskId) {
        let Some(task) = self.pending.remove(&id) else { return };
        for later in task.before {
            if let Some(later_task) = self.pending.get_mut(&later) {
                later_task.waiting_for -= 1;
                if later_task.waiting_for == 0 {
                    self.ready.push(later);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Tasks, Work};

    fn order(seed: u64) -> Vec<u64> {
        let mut tasks = Tasks::new(seed);
        let a = tasks.add(1, [], Work::Nothing);
        let b = tasks.add(1, [a], Work::Nothing);
        let _c = tasks.add(1, [], Work::Nothing);
        let d = tasks.add(1, [b], Work::Nothing);
        let mut ran = Vec::new();
        while tasks.is_pending(d) {
            let needed = tasks.needed(&[d]);
            let (id, ..) = tasks.take(Some(&needed)).expect("one is ready");
            tasks.done(id);
            ran.push(id);
        }
        ran
    }

    #[test]
    fn orders_respect_dependencies_and_differ_by_seed() {
        let orders: std::collections::BTreeSet<Vec<u64>> = (0..32)
            .map(|seed| {
                let order = order(seed);
                let place = |id| order.iter().position(|task| *task == id);
                assert!(place(1) < place(2) && place(2) < place(4));
                assert_eq!(order, self::order(seed), "the same seed gives the same order");
                order
            })
            .collect();
        assert!(orders.len() > 2, "{orders:?}");
        assert!(orders.contains(&vec![1, 2, 4]), "the late one leaves what nobody waits for");
    }
}
