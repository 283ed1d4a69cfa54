//! A runner that owns its model (rule 66).

use super::model::{Owned, Small};
use crate::support::{Rig, driver};
use crate::{bits, buckets, run_eager, runner};
use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::prefill::CaptureWhen;
use breakable_cuda_graph::{PrefillRunner, Result};
use std::sync::Arc;

/// What a class of another language or a service keeps.
struct Engine {
    model: Arc<Small>,
    runner: PrefillRunner<'static, Small>,
    stream: Stream,
}

impl Engine {
    fn new(rig: &Rig, when: CaptureWhen) -> Result<Engine> {
        let model = Arc::new(Small::new(rig));
        let runner = PrefillRunner::owning(model.clone(), &rig.context, buckets(&[4, 8]).when(when))?;
        Ok(Engine { model, runner, stream: rig.stream.clone() })
    }

    fn run(&mut self, batch: &Owned) -> Result<Vec<f32>> {
        batch.with(|batch| self.runner.run(&self.stream, batch)?.read(0, &self.stream))
    }
}

/// The engine's parts go in any order, and on another thread.
#[test]
fn an_engine_keeps_its_model_and_its_runner() {
    let rig = Rig::new(&driver());
    let model = Small::new(&rig);
    let mut expected = runner(&rig, &model, buckets(&[4, 8]));
    for when in [CaptureWhen::StartUp, CaptureWhen::FirstUse] {
        let mut engine = Engine::new(&rig, when).expect("an engine");
        engine.runner.capture_all(&rig.stream, |_| {}).expect("captured");
        let batch = Owned::new(&rig.stream, 1, 5);
        let expected = bits(&[run_eager(&rig, &mut expected, &batch).swap_remove(0)]);
        assert_eq!(bits(&[engine.run(&batch).expect("a batch")]), expected);
        let engine = std::thread::scope(|scope| {
            let (batch, expected) = (&batch, &expected);
            let thread = scope.spawn(move || {
                // Moved, and the model is where it was.
                let mut engine = Box::new(engine);
                assert_eq!(&bits(&[engine.run(batch).expect("a batch")]), expected);
                engine
            });
            thread.join().expect("no panic")
        });
        let Engine { model, mut runner, stream } = *engine;
        assert!(std::ptr::eq(&*model, runner.model()) && Arc::strong_count(&model) == 2);
        let weak = Arc::downgrade(&model);
        drop(model);
        let again = batch.with(|batch| runner.run(&stream, batch)?.read::<f32>(0, &stream));
        assert_eq!(bits(&[again.expect("a batch")]), expected, "the runner has its share");
        drop(runner);
        assert!(weak.upgrade().is_none(), "and gives it back");
    }
}
