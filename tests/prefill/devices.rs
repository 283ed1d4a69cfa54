//! Several devices in one process, with the other's context current on purpose.

use super::model::{Owned, Small};
use crate::support::demo::Ops;
use crate::support::demo::options;
use crate::{bits, buckets};
use breakable_cuda_graph::driver::{Context, Device, Stream};
use breakable_cuda_graph::prefill::{CaptureWhen, Ranks, ThreadRank};
use breakable_cuda_graph::{Driver, Error, Misuse, PrefillRunner};
use std::thread;

/// On libcuda as many as there are, at most two.
fn contexts() -> Vec<Context> {
    let driver = if cfg!(feature = "driver-tests") {
        crate::support::driver()
    } else {
        Driver::reference_with(options().devices(2)).expect("a reference driver")
    };
    let count = Device::count(&driver).expect("a count").min(2);
    (0..count)
        .map(|ordinal| Device::get(&driver, ordinal).and_then(|device| device.primary_context()).expect("a context"))
        .collect()
}

#[test]
fn each_runner_works_on_its_own_device_whatever_is_current() {
    let contexts = contexts();
    let mut results = Vec::new();
    thread::scope(|scope| {
        let mut ranks = ThreadRank::group(contexts.len()).into_iter();
        let mut threads = Vec::new();
        for (ordinal, context) in contexts.iter().enumerate() {
            let other = &contexts[contexts.len() - 1 - ordinal];
            let rank = ranks.next().expect("a rank");
            threads.push(scope.spawn(move || {
                assert_eq!(rank.rank(), ordinal);
                // Everything from here on happens with the other device's context current.
                other
                    .with_current(|| {
                        let stream = Stream::new(context).expect("a stream");
                        let model = Small::try_new(&Ops::load(context).expect("kernels"), &stream).expect("a model");
                        let options = buckets(&[4, 8, 16]).when(CaptureWhen::FirstUse).ranks(rank);
                        let mut runner = PrefillRunner::new(&model, context, options).expect("a runner");
                        assert!(runner.context() == context);
                        let mut all = Vec::new();
                        for (step, rows) in [3, 16, 5, 1, 9].into_iter().enumerate() {
                            let owned = Owned::new(&stream, step as u64, rows);
                            let read = |outputs: breakable_cuda_graph::prefill::BatchOutputs<'_>| {
                                assert!(outputs.tensor(0).expect("one").context().expect("device memory") == context);
                                vec![outputs.read::<f32>(0, &stream).expect("an output")]
                            };
                            let got = owned.with(|batch| runner.run(&stream, batch)).map(read).expect("a batch");
                            let expected =
                                owned.with(|batch| runner.run_eager(&stream, batch)).map(read).expect("a batch");
                            assert_eq!(bits(&got), bits(&expected));
                            all.push(bits(&got));
                        }
                        assert!(runner.inputs().iter().all(|input| input.context().expect("device memory") == context));
                        assert_eq!(runner.stats().total_replays(), 5);
                        runner.turn_off().expect("off");
                        all
                    })
                    .expect("the other context")
            }));
        }
        results.extend(threads.into_iter().map(|thread| thread.join().expect("no panic")));
    });
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "the same on every device");
}

/// Nothing of one device's runner is made on the other.
#[test]
fn nothing_is_made_on_the_wrong_device() {
    let contexts = contexts();
    let [first, .., second] = &contexts[..] else { return };
    let free = |context: &Context| context.memory_info().expect("memory").free;
    let stream = Stream::new(first).expect("a stream");
    let model = Small::try_new(&Ops::load(first).expect("kernels"), &stream).expect("a model");
    let before = free(second);
    second
        .with_current(|| {
            let mut runner = PrefillRunner::new(&model, first, buckets(&[64, 128])).expect("a runner");
            let own = free(first);
            runner.capture_all(&stream, |_| {}).expect("captured");
            assert!(free(first) < own);
            let foreign = Stream::new(second).expect("a stream");
            let owned = Owned::new(&stream, 1, 30);
            let refused = owned.with(|batch| runner.run(&foreign, batch).map(drop));
            assert!(matches!(refused, Err(Error::Misuse(Misuse::ContextMismatch { .. }))), "{refused:?}");
            let refused = runner.capture_all(&foreign, |_| {});
            assert!(refused.is_ok(), "nothing is left to capture");
            let got = owned.with(|batch| runner.run(&stream, batch).map(|outputs| outputs.bucket()));
            assert_eq!(got.expect("a batch"), Some(64));
        })
        .expect("the other context");
    assert_eq!(free(second), before);
}
