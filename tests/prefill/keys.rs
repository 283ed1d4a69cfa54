//! Several keys captured at once, and buckets captured anew beside their old captures (rule 66).

use crate::buckets;
use crate::support::demo::Ops;
use crate::support::{Rig, driver, for_each_driver};
use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::prefill::{
    Batch, CaptureWhen, Decision, EagerReason, InputData, InputSpec, Mode, OutputSpec, PrefillError, PrefillModel,
    ReasonKind, TailRule, ThreadRank,
};
use breakable_cuda_graph::{DType, Error, PrefillRunner, Result, RunnerOptions, Scope, Tensor, current_forward_ctx};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Multiplies by its adapter's factor, in a segment: the key is the adapter's name.
struct Adapted {
    ops: Ops,
    factors: Mutex<Vec<(&'static str, f32)>>,
    /// What a dummy of another key than was asked for is of.
    wrong_dummy: bool,
    fails_at: AtomicUsize,
    recordings: AtomicU32,
}

impl Adapted {
    fn new(ops: &Ops) -> Adapted {
        let factors = Mutex::new(vec![("none", 1.0), ("two", 2.0), ("three", 3.0)]);
        let (fails_at, recordings) = (AtomicUsize::new(0), AtomicU32::new(0));
        Adapted { ops: ops.clone(), factors, wrong_dummy: false, fails_at, recordings }
    }
}

impl PrefillModel for Adapted {
    type Context = &'static str;
    type Key = &'static str;

    fn inputs(&self) -> Vec<InputSpec> {
        vec![InputSpec::rows("x", DType::F32, &[1]).tail(TailRule::Zero)]
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        vec![OutputSpec::rows("y", DType::F32, &[1])]
    }

    fn key(&self) -> &'static str {
        "none"
    }

    fn dummy(&self, _: &Stream, _: usize) -> Result<&'static str> {
        Ok("none")
    }

    fn dummy_for(&self, stream: &Stream, rows: usize, key: &&'static str) -> Result<&'static str> {
        if self.wrong_dummy { self.dummy(stream, rows) } else { Ok(key) }
    }

    fn mode(&self, adapter: &&'static str) -> Mode<&'static str> {
        Mode::Eligible(adapter)
    }

    fn forward<'m>(&'m self, scope: &Scope<'_, 'm>, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let adapter = current_forward_ctx(|adapter: Option<&&'static str>| adapter.copied());
        let factors = self.factors.lock().expect("no panic");
        let found = factors.iter().find(|(name, _)| Some(*name) == adapter);
        let factor = found.ok_or_else(|| Error::user("no such adapter"))?.1;
        if scope.is_capturing() {
            self.recordings.fetch_add(1, Ordering::Relaxed);
            if self.fails_at.load(Ordering::Relaxed) == inputs[0].rows() {
                return Err(Error::user("not now"));
            }
        }
        let y = self.ops.scale(&inputs[0], factor)?;
        Ok(vec![scope.break_point("same", [&y], |b| b.input(0).cloned())?])
    }
}

fn runner<'m>(rig: &Rig, model: &'m Adapted, options: RunnerOptions) -> PrefillRunner<'m, Adapted> {
    PrefillRunner::new(model, &rig.context, options).expect("a runner")
}

/// What two rows give, and the bucket that they were replayed in.
fn run(rig: &Rig, runner: &mut PrefillRunner<'_, Adapted>, adapter: &'static str) -> (Vec<f32>, Option<usize>) {
    let batch = Batch { rows: 2, context: &adapter, inputs: &[InputData::host(&[1.0_f32, 10.0])] };
    let outputs = runner.run(&rig.stream, &batch).expect("a batch");
    (outputs.read(0, &rig.stream).expect("an output"), outputs.bucket())
}

#[test]
fn several_keys_are_captured_at_once() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let model = Adapted::new(&rig.ops);
        for when in [CaptureWhen::StartUp, CaptureWhen::FirstUse, CaptureWhen::OnCall] {
            let mut runner = runner(&rig, &model, buckets(&[4, 8]).when(when));
            runner.add_key("two").expect("a key");
            runner.add_key("two").expect("it is there");
            runner.add_key("three").expect("a key");
            assert!(runner.keys().copied().eq(["none", "two", "three"]));
            match when {
                CaptureWhen::StartUp => runner.capture_all(&rig.stream, |one| assert_eq!(one.of, 6)).expect("captured"),
                CaptureWhen::OnCall => {
                    runner.plan(&rig.stream).expect("a plan");
                    while runner.capture_next(&rig.stream).expect("a capture").is_some() {}
                }
                _ => {}
            }
            let expected = [("two", 2.0), ("none", 1.0), ("three", 3.0)].map(|(name, f)| (name, vec![f, 10.0 * f]));
            for (adapter, values) in expected.iter().chain(&expected) {
                assert_eq!(run(&rig, &mut runner, adapter), (values.clone(), Some(4)), "{when:?}");
            }
            let stats = runner.stats();
            let live = if when == CaptureWhen::FirstUse { 3 } else { 6 };
            assert_eq!((stats.live, stats.total_replays(), stats.replays[0].replays), (live, 6, 6));
            assert_eq!(runner.capture_of(4, &"two").expect("a capture").report().breaks, ["same"]);
            assert!(runner.is_captured(4) && runner.capture_of(4, &"four").is_none());

            assert!(runner.remove_key(&"two") && !runner.remove_key(&"two"));
            assert_eq!(run(&rig, &mut runner, "two"), (vec![2.0, 20.0], None));
            assert_eq!(runner.stats().eager_in(ReasonKind::KeyMismatch, Some(4)), 1);
            assert_eq!(run(&rig, &mut runner, "three"), (vec![3.0, 30.0], Some(4)));
            // The place is used again.
            model.factors.lock().expect("no panic").push(("five", 5.0));
            runner.add_key("five").expect("a key");
            assert!(!runner.is_captured(4));
            runner.capture_all(&rig.stream, |_| {}).expect("captured");
            assert_eq!(run(&rig, &mut runner, "five"), (vec![5.0, 50.0], Some(4)));
            assert_eq!(run(&rig, &mut runner, "none"), (vec![1.0, 10.0], Some(4)));
            runner.set_key("none");
            assert!(runner.stats().live == 0 && runner.keys().count() == 1);
        }
    });
}

/// A dummy of another key would make captures that serve the wrong batches.
#[test]
fn a_dummy_of_another_key_is_refused() {
    let rig = Rig::new(&driver());
    let mut model = Adapted::new(&rig.ops);
    model.wrong_dummy = true;
    let mut runner = runner(&rig, &model, buckets(&[4]));
    runner.add_key("two").expect("a key");
    let error = runner.capture_all(&rig.stream, |_| {}).expect_err("it is refused");
    assert!(matches!(&error, Error::Prefill(PrefillError::DummyKey { bucket: 4, key }) if key == "\"two\""), "{error}");
    assert!(error.to_string().contains("dummy_for"), "{error}");
}

/// Bounds hold over all keys.
#[test]
fn the_number_of_captures_is_bounded_over_all_keys() {
    let rig = Rig::new(&driver());
    let model = Adapted::new(&rig.ops);
    let mut runner = runner(&rig, &model, buckets(&[4]).when(CaptureWhen::FirstUse).max_captures(2));
    runner.add_key("two").expect("a key");
    runner.add_key("three").expect("a key");
    for adapter in ["none", "two", "three", "two"] {
        assert_eq!(run(&rig, &mut runner, adapter).1, Some(4));
    }
    assert_eq!((runner.stats().live, runner.stats().evicted), (2, 1));
    assert!(runner.capture_of(4, &"none").is_none() && runner.capture_of(4, &"two").is_some());
}

#[test]
fn a_bucket_is_captured_anew_beside_its_old_capture() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let model = Adapted::new(&rig.ops);
        let mut runner = runner(&rig, &model, buckets(&[4, 8]).max_captures(4));
        runner.add_key("two").expect("a key");
        runner.capture_all(&rig.stream, |_| {}).expect("captured");
        // Another factor is there for what is captured from now on.
        model.factors.lock().expect("no panic")[1].1 = 20.0;
        assert_eq!(run(&rig, &mut runner, "two"), (vec![2.0, 20.0], Some(4)), "the old one");
        model.fails_at.store(4, Ordering::Relaxed);
        runner.recapture(&rig.stream, 4, |_| panic!("none is made")).expect_err("it fails");
        assert_eq!(run(&rig, &mut runner, "two"), (vec![2.0, 20.0], Some(4)), "still the old one");
        assert!(runner.is_on() && runner.stats().failed == 1 && runner.stats().live == 4);
        model.fails_at.store(0, Ordering::Relaxed);
        let mut told = Vec::new();
        runner.recapture(&rig.stream, 4, |one| told.push((one.bucket, one.done, one.of))).expect("captured anew");
        assert_eq!(told, [(4, 1, 2), (4, 2, 2)]);
        assert_eq!(run(&rig, &mut runner, "two"), (vec![20.0, 200.0], Some(4)));
        assert_eq!(run(&rig, &mut runner, "none"), (vec![1.0, 10.0], Some(4)));
        assert_eq!((runner.stats().live, runner.stats().evicted), (4, 0));
        let error = runner.recapture(&rig.stream, 5, |_| {}).expect_err("no bucket");
        assert!(matches!(error, Error::Prefill(PrefillError::NotCaptured { bucket: 5 })), "{error}");
    });
}

/// Ranks whose batches are of different keys would run different captures.
#[test]
fn ranks_replay_one_key() {
    let rig = Rig::new(&driver());
    let model = Adapted::new(&rig.ops);
    std::thread::scope(|scope| {
        for rank in ThreadRank::group(2) {
            let (rig, model) = (&rig, &model);
            scope.spawn(move || {
                let me = breakable_cuda_graph::prefill::Ranks::rank(&rank);
                let stream = Stream::new(&rig.context).expect("a stream");
                let mut runner = runner(rig, model, buckets(&[4]).ranks(rank));
                runner.add_key("two").expect("a key");
                runner.capture_all(&stream, |_| {}).expect("captured");
                for (adapters, replays) in [(["two", "two"], true), (["none", "two"], false), (["none", "none"], true)]
                {
                    let batch = Batch { rows: 2, context: &adapters[me], inputs: &[InputData::host(&[1.0_f32, 10.0])] };
                    let decision = runner.decide(&batch);
                    match decision {
                        Decision::Replay { bucket: 4 } => assert!(replays),
                        Decision::Eager(EagerReason::RanksDisagree) => assert!(!replays),
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
    });
}

/// Which bucket was not captured is told apart (r11 of the list of faults).
#[test]
fn reasons_are_counted_by_bucket() {
    let rig = Rig::new(&driver());
    let model = Adapted::new(&rig.ops);
    let mut runner = runner(&rig, &model, buckets(&[1, 2, 4]).when(CaptureWhen::OnCall));
    let mut batch = |rows: usize| {
        let x = vec![1.0_f32; rows];
        let batch = Batch { rows, context: &"none", inputs: &[InputData::host(&x)] };
        assert_eq!(runner.run(&rig.stream, &batch).expect("a batch").bucket(), None);
    };
    [1, 2, 3, 4, 4, 5, 0].into_iter().for_each(&mut batch);
    let stats = runner.stats();
    let counts = [Some(1), Some(2), Some(4), None].map(|bucket| stats.eager_in(ReasonKind::NotCaptured, bucket));
    assert_eq!((counts, stats.eager_for(ReasonKind::NotCaptured)), ([1, 1, 3, 0], 5));
    assert_eq!(stats.eager_in(ReasonKind::AboveLargest, None), 1);
    assert_eq!((stats.eager_in(ReasonKind::NoRows, Some(1)), stats.total_eager()), (1, 7));
    assert_eq!(stats.eager.len(), 5, "what there was none of is not listed: {stats:?}");
}
