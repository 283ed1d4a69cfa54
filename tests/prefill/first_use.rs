//! What a batch that captures runs (rule 55), and what nothing but a batch may store (rule 56).

use crate::buckets;
use crate::support::demo::Ops;
use crate::support::{Rig, assert_same, for_each_seed};
use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::prefill::{
    Batch, CaptureWhen, FnModel, InputData, InputSpec, Mode, OutputSpec, PrefillModel, TailRule,
};
use breakable_cuda_graph::{
    BreakKind, BreakOptions, DType, Error, PrefillRunner, Result, Scope, Tensor, is_warming_up,
};
use std::sync::Mutex;

/// A break counts up the slot that its context names, and notes what it was told; the next segment stores the break's rows. Another break fills in the
/// valid rows and leaves the others as they come.
struct Store {
    ops: Ops,
    counts: Tensor,
    sink: Tensor,
    kind: BreakKind,
    told: Mutex<Vec<(usize, Option<usize>)>>,
    /// Of the dummy's slot; `None`: it has none.
    dummy: Option<usize>,
    fails: bool,
}

impl Store {
    fn new(rig: &Rig, kind: BreakKind) -> Store {
        let (counts, sink) = (rig.zeros(&[3, 1]), rig.zeros(&[8, 4]));
        Store { ops: rig.ops.clone(), counts, sink, kind, told: Mutex::default(), dummy: Some(0), fails: false }
    }

    fn told(&self) -> Vec<(usize, Option<usize>)> {
        std::mem::take(&mut self.told.lock().expect("no panic"))
    }
}

impl PrefillModel for Store {
    type Context = usize;
    type Key = ();

    fn inputs(&self) -> Vec<InputSpec> {
        let seen = InputSpec::rows("seen", DType::F32, &[4]).tail(TailRule::LeftAlone);
        vec![InputSpec::rows("x", DType::F32, &[4]).tail(TailRule::Zero), seen]
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        vec![OutputSpec::rows("y", DType::F32, &[4])]
    }

    fn key(&self) {}

    fn dummy(&self, _: &Stream, _: usize) -> Result<usize> {
        self.dummy.ok_or_else(|| Error::user("there is no dummy"))
    }

    fn mode(&self, _: &usize) -> Mode<()> {
        Mode::Eligible(())
    }

    fn forward<'m>(&'m self, scope: &Scope<'_, 'm>, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let h = self.ops.relu(&inputs[0])?;
        scope.break_point(BreakOptions::new("count").kind(self.kind), [&h], move |b| {
            let slot = *b.forward_ctx::<usize>()?;
            self.told.lock().expect("no panic").push((slot, b.valid_rows()?));
            let one = b.empty(DType::F32, &[1])?;
            self.ops.fill(b.stream(), &one, 1.0)?;
            self.ops.add_bias(b.stream(), &one, &self.counts.narrow(0, slot, 1)?)
        })?;
        let h = scope.break_point(BreakOptions::new("rows").kind(self.kind), [&h], move |b| {
            let y = b.empty(DType::F32, b.input(0)?.shape())?;
            self.ops.fill(b.stream(), &y, f32::NAN)?;
            let rows = b.valid_rows()?.unwrap_or(b.input(0)?.rows());
            if rows > 0 {
                self.ops.scale_into(b.stream(), &b.input(0)?.leading_rows(rows), 2.0, &y.leading_rows(rows))?;
            }
            Ok(y)
        })?;
        // A segment stores what came, in the model's own memory and in an input.
        self.ops.scale_into(&scope.stream()?, &h, 1.0, &self.sink.leading_rows(h.rows()))?;
        if self.fails && scope.is_capturing() {
            return Err(Error::user("not this one"));
        }
        self.ops.scale_into(&scope.stream()?, &h, 1.0, &inputs[1])?;
        Ok(vec![self.ops.add(&h, &inputs[1])?])
    }
}

const KINDS: [BreakKind; 2] = [BreakKind::Live, BreakKind::Patched];

fn runner<'m>(rig: &Rig, model: &'m Store, warm_ups: usize, when: CaptureWhen) -> PrefillRunner<'m, Store> {
    PrefillRunner::new(model, &rig.context, buckets(&[8]).warm_ups(warm_ups).when(when)).expect("a runner")
}

/// Three rows in the second slot, with other values in each row; what they give twice over.
fn run(rig: &Rig, runner: &mut PrefillRunner<'_, Store>, inputs: &[InputData<'_>]) -> (Vec<f32>, Option<usize>) {
    let outputs = runner.run(&rig.stream, &Batch { rows: 3, context: &1, inputs }).expect("a batch");
    (outputs.read(0, &rig.stream).expect("an output"), outputs.bucket())
}

fn values() -> ([f32; 12], [f32; 12]) {
    let x = std::array::from_fn(|at| at as f32 + 1.0);
    (x, x.map(|value| 4.0 * value))
}

#[test]
fn a_batch_that_captures_runs_once_with_its_own_context_and_rows() {
    for_each_seed(|rig| {
        let (x, y) = values();
        for kind in KINDS {
            for warm_ups in [0, 1, 3] {
                let mut model = Store::new(&rig, kind);
                model.dummy = (warm_ups > 0).then_some(0);
                let mut runner = runner(&rig, &model, warm_ups, CaptureWhen::FirstUse);
                let (got, bucket) = run(&rig, &mut runner, &[InputData::host(&x), InputData::host(&x)]);
                assert_eq!(bucket, Some(8));
                assert_same(&got, &y);
                // Bodies of patched breaks are recorded beside the run, on the host.
                let own = 1 + usize::from(kind == BreakKind::Patched);
                let expected = [vec![(0, Some(0)); warm_ups], vec![(1, Some(3)); own]].concat();
                assert_eq!(model.told(), expected, "{kind:?}");
                assert_same(&rig.read(&model.counts), &[warm_ups as f32, 1.0, 0.0]);
                assert_same(&rig.read(&model.sink)[12..], &[0.0; 20]);
                let (got, _) = run(&rig, &mut runner, &[InputData::host(&x), InputData::host(&x)]);
                assert_same(&got, &y);
                assert_same(&rig.read(&model.counts), &[warm_ups as f32, 2.0, 0.0]);
                assert_eq!((runner.stats().captured, runner.stats().total_replays()), (1, 2));
            }
        }
    });
}

/// Rows that the batch has written where captures read them, and a tail that an earlier batch left.
#[test]
fn what_warm_ups_change_of_static_inputs_is_put_back() {
    for_each_seed(|rig| {
        let (x, y) = values();
        for fails in [false, true] {
            let mut model = Store::new(&rig, BreakKind::Live);
            model.fails = fails;
            let mut runner = runner(&rig, &model, 2, CaptureWhen::FirstUse);
            // Inputs are there from the first batch on.
            let host = [InputData::host(&x), InputData::host(&x)];
            let eager = runner.run_eager(&rig.stream, &Batch { rows: 3, context: &2, inputs: &host });
            assert_same(&eager.and_then(|outputs| outputs.read(0, &rig.stream)).expect("a batch"), &y);
            let (first, seen) = (runner.inputs()[0].clone(), runner.inputs()[1].clone());
            first.leading_rows(3).write(&rig.stream, &x).expect("written");
            seen.write(&rig.stream, &[7.0_f32; 32]).expect("written");
            let in_place = first.leading_rows(3);
            let (got, bucket) = run(&rig, &mut runner, &[(&in_place).into(), InputData::host(&x)]);
            assert_eq!(bucket, (!fails).then_some(8));
            assert_same(&got, &y);
            if fails {
                assert_same(&rig.read(&seen)[12..], &[7.0; 20]);
            }
        }
    });
}

/// Warm-ups, captures and the replay that tries them out say that no row is valid, and handoffs are zero from there on.
#[test]
fn nothing_undefined_is_stored_before_there_is_a_batch() {
    for_each_seed(|rig| {
        for kind in KINDS {
            for when in [CaptureWhen::StartUp, CaptureWhen::OnCall] {
                let model = Store::new(&rig, kind);
                let mut runner = runner(&rig, &model, 2, when);
                runner.plan(&rig.stream).expect("a plan");
                runner.capture_all(&rig.stream, |_| {}).expect("captured");
                assert_same(&rig.read(&model.sink), &[0.0; 32]);
                let told = model.told();
                assert!(told.iter().all(|told| *told == (0, Some(0))) && told.len() >= 4, "{told:?}");
                let (x, y) = values();
                let (got, _) = run(&rig, &mut runner, &[InputData::host(&x), InputData::host(&x)]);
                assert_same(&got, &y);
                assert!(model.told().iter().all(|told| *told == (1, Some(3))));
                assert_same(&rig.read(&model.sink)[12..], &[0.0; 20]);
            }
        }
    });
}

/// Eager forwards tell their rows too, and scrub where there is padding.
#[test]
fn eager_batches_tell_their_rows() {
    for_each_seed(|rig| {
        let (x, y) = values();
        let model = Store::new(&rig, BreakKind::Live);
        let mut runner = runner(&rig, &model, 0, CaptureWhen::OnCall);
        let inputs = [InputData::host(&x), InputData::host(&x)];
        let batch = Batch { rows: 3, context: &1, inputs: &inputs };
        for padded in [false, true] {
            let outputs = if padded {
                runner.run_eager_in(&rig.stream, &batch, 8)
            } else {
                runner.run_eager(&rig.stream, &batch)
            };
            assert_same(&outputs.and_then(|outputs| outputs.read(0, &rig.stream)).expect("a batch"), &y);
            assert_eq!(model.told(), [(1, Some(3))]);
        }
        assert_same(&rig.read(&model.sink)[12..], &[0.0; 20]);
    });
}

#[test]
fn a_model_is_told_its_warm_ups_and_recordings_from_its_batches() {
    for_each_seed(|rig| {
        let seen = Mutex::new(Vec::new());
        let model = FnModel::new((), (), |(), scope, inputs| {
            seen.lock().expect("no panic").push((is_warming_up(), scope.is_recording()));
            Ok(vec![scope.break_point("pass", [&inputs[0]], |b| b.input(0).cloned())?])
        });
        let model = model.input(InputSpec::rows("x", DType::F32, &[1]).tail(TailRule::Zero));
        let model = model.output(OutputSpec::rows("y", DType::F32, &[1]));
        let mut runner = PrefillRunner::new(&model, &rig.context, buckets(&[4]).warm_ups(2)).expect("a runner");
        runner.capture_all(&rig.stream, |_| {}).expect("captured");
        let states = std::mem::take(&mut *seen.lock().expect("no panic"));
        // The first is traced as if it were recorded.
        assert_eq!(states, [(true, true), (true, false), (false, true)]);
        let data = [InputData::host(&[1.0_f32])];
        let batch = Batch { rows: 1, context: &(), inputs: &data };
        runner.run_eager(&rig.stream, &batch).map(drop).expect("a batch");
        runner.run(&rig.stream, &batch).map(drop).expect("a batch");
        assert_eq!(*seen.lock().expect("no panic"), [(false, false)]);
    });
}
