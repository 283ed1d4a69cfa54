//! Captures compared with their eager forward (rule 54): each kind of difference is found, with its place and its cause.

use crate::support::{Rig, assert_same, for_each_driver, for_each_seed};
use breakable_cuda_graph::{
    BreakKind, BreakOptions, BreakableCapture, CaptureOptions, DType, Difference, Error, GraphOptions, Misuse, Result,
    Scope, Tensor, Verified, VerifyCause, VerifyError, VerifyOptions, VerifyPlace, active_forward,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const ROWS: usize = 4;
const WIDTH: usize = 3;

/// Two batches: a context each, and data for the input.
struct Batches {
    contexts: [f32; 2],
    data: [Vec<f32>; 2],
    valid_rows: [usize; 2],
}

fn batches() -> Batches {
    let data = [1.0, 2.0].map(|first| (0..ROWS * WIDTH).map(|at| first + at as f32).collect());
    Batches { contexts: [2.0, 3.0], data, valid_rows: [4, 2] }
}

/// A forward over one input that is recorded and verified.
struct Case<'r> {
    rig: &'r Rig,
    input: Tensor,
    batches: Batches,
    options: VerifyOptions,
    capture: CaptureOptions,
    /// Rows of a batch that are written; the rows after them are left alone.
    fills_tail: bool,
}

type Forward<'f> = &'f dyn Fn(&Scope<'_, '_>, &Tensor) -> Result<Tensor>;

impl<'r> Case<'r> {
    fn new(rig: &'r Rig) -> Case<'r> {
        Case {
            rig,
            input: rig.zeros(&[ROWS, WIDTH]),
            batches: batches(),
            options: VerifyOptions::new(),
            capture: CaptureOptions::default().name("case").bucket(ROWS),
            fills_tail: true,
        }
    }

    fn record(&self, forward: Forward<'_>) -> (BreakableCapture<'static>, Tensor) {
        let mut capture = BreakableCapture::with_options(&self.rig.pool, self.capture.clone()).expect("a capture");
        let output = active_forward(&self.batches.contexts[0], || {
            capture.record(&self.rig.stream, |scope| forward(scope, &self.input))
        });
        (capture, output.expect("a recording"))
    }

    /// Fills a batch in as an engine does: its valid rows, and zeros after them.
    fn fill(&self, input: &Tensor, batch: usize) -> Result<()> {
        let valid = self.batches.valid_rows[batch];
        let rows = if self.fills_tail { ROWS } else { valid };
        let mut values = self.batches.data[batch].clone();
        values[valid * WIDTH..].fill(0.0);
        input.leading_rows(rows).write(&self.rig.stream, &values[..rows * WIDTH])
    }

    fn verify(&self, capture: &mut BreakableCapture<'_>, output: &Tensor, forward: Forward<'_>) -> Result<Verified> {
        let options = self.options.clone().input("x", &self.input).output("y", output);
        let options = options.valid_rows(self.batches.valid_rows);
        capture.verify(
            &self.rig.stream,
            &options,
            |batch, run| {
                self.fill(&self.input, batch)?;
                active_forward(&self.batches.contexts[batch], run)
            },
            |scope| Ok(vec![forward(scope, &self.input)?]),
        )
    }

    fn verified(&self, forward: Forward<'_>) -> Result<Verified> {
        let (mut capture, output) = self.record(forward);
        self.verify(&mut capture, &output, forward)
    }

    fn found(&self, forward: Forward<'_>) -> VerifyError {
        found(self.verified(forward))
    }
}

#[track_caller]
fn found(verified: Result<Verified>) -> VerifyError {
    match verified {
        Err(Error::Verify(found)) => *found,
        other => panic!("{other:?}"),
    }
}

/// A segment, a break that scales by the context, a segment.
fn sound(rig: &Rig, kind: BreakKind, scope: &Scope<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let (h, ops) = (rig.ops.add(x, x)?, rig.ops.clone());
    let h = scope.break_point(BreakOptions::new("scale").kind(kind), [&h], move |b| {
        let scaled = b.empty(DType::F32, b.input(0)?.shape())?;
        ops.scale_into(b.stream(), b.input(0)?, *b.forward_ctx::<f32>()?, &scaled)?;
        Ok(scaled)
    })?;
    rig.ops.add(&h, x)
}

#[test]
fn a_capture_that_is_right_is_said_to_be() {
    for_each_seed(|rig| {
        for kind in [BreakKind::Live, BreakKind::Patched] {
            for share in [false, true] {
                let mut case = Case::new(&rig);
                case.capture = case.capture.clone().graph(GraphOptions::default().share_execs(share));
                let forward = |scope: &Scope<'_, '_>, x: &Tensor| sound(&rig, kind, scope, x);
                let verified = case.verified(&forward).expect("it is right");
                assert_eq!((verified.handoffs, verified.outputs, verified.bit_equal), (2, 2, true));
            }
        }
    });
}

#[test]
fn a_verified_capture_replays_on_as_before_and_keeps_no_more_execs() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let case = Case::new(&rig);
        let forward = |scope: &Scope<'_, '_>, x: &Tensor| sound(&rig, BreakKind::Patched, scope, x);
        let (mut capture, output) = case.record(&forward);
        let (execs, fell_back) = (capture.exec_memory().execs, capture.patch_stats().fell_back);
        case.verify(&mut capture, &output, &forward).expect("it is right");
        assert_eq!((capture.exec_memory().execs, capture.patch_stats().fell_back), (execs, fell_back));
        case.fill(&case.input, 0).expect("data");
        let _ = active_forward(&10.0_f32, || capture.replay(&rig.stream)).expect("a replay");
        let expected: Vec<f32> = case.batches.data[0].iter().map(|x| x * 21.0).collect();
        assert_same(&rig.read(&output), &expected);
    });
}

#[test]
fn a_frozen_context_is_found_in_its_segment() {
    for_each_seed(|rig| {
        for kind in [BreakKind::Live, BreakKind::Patched] {
            let case = Case::new(&rig);
            let found = case.found(&|scope, x| {
                let h = rig.ops.scale(x, *scope.frozen_ctx::<f32>()?)?;
                let ops = rig.ops.clone();
                let options = BreakOptions::new("pass").kind(kind);
                scope.break_point(options, [&h], move |b| ops.add(b.input(0)?, b.input(0)?))
            });
            assert_eq!((found.batch, found.cause.clone()), (1, VerifyCause::FrozenContext), "{found}");
            let seen_in = "input 0 of break 0 (\"pass\")".to_owned();
            assert_eq!(found.place, VerifyPlace::Segment { segment: 0, seen_in });
            let Some(Difference { row: 0, element: 0, eager, replayed, .. }) = found.difference else {
                panic!("{found:?}")
            };
            assert_eq!((eager, replayed), (6.0, 4.0));
            let text = found.to_string();
            for part in ["case", "bucket 4", "batch 1", "segment 0", "break 0 (\"pass\")", "6", "4", "forward context"]
            {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    });
}

#[test]
fn a_context_frozen_in_the_last_segment_is_found_at_the_output() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let case = Case::new(&rig);
        let found = case.found(&|scope, x| {
            let ops = rig.ops.clone();
            let h = scope.break_point("pass", [x], move |b| ops.add(b.input(0)?, b.input(0)?))?;
            rig.ops.scale(&h, *scope.frozen_ctx::<f32>()?)
        });
        assert_eq!(found.cause, VerifyCause::FrozenContext);
        assert_eq!(found.place, VerifyPlace::Segment { segment: 1, seen_in: "output 0 (\"y\")".to_owned() });
    });
}

#[test]
fn an_input_that_moved_is_found() {
    for_each_seed(|rig| {
        for kind in [BreakKind::Live, BreakKind::Patched] {
            let mut case = Case::new(&rig);
            let forward = |scope: &Scope<'_, '_>, x: &Tensor| sound(&rig, kind, scope, x);
            let (mut capture, output) = case.record(&forward);
            // The engine makes its buffer anew, and the capture reads the old one.
            case.input = rig.zeros(&[ROWS, WIDTH]);
            let found = found(case.verify(&mut capture, &output, &forward));
            assert_eq!(found.cause, VerifyCause::MovedInput { input: "x".to_owned() }, "{found}");
            assert!(matches!(found.place, VerifyPlace::Segment { segment: 0, .. }), "{found}");
        }
    });
}

/// The mean of all rows, padded ones too.
fn sum_of_rows(rig: &Rig, scope: &Scope<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let mut sum = scope.empty(DType::F32, &[WIDTH])?;
    rig.ops.fill(&scope.stream()?, &sum, 0.0)?;
    for row in 0..x.rows() {
        sum = rig.ops.add(&sum, &x.narrow(0, row, 1)?.reshape(&[WIDTH])?)?;
    }
    let out = scope.empty(DType::F32, x.shape())?;
    for row in 0..x.rows() {
        out.narrow(0, row, 1)?.reshape(&[WIDTH])?.copy_from(&scope.stream()?, &sum)?;
    }
    Ok(out)
}

#[test]
fn a_tail_that_is_not_filled_is_found_where_valid_rows_depend_on_it() {
    for_each_seed(|rig| {
        let mut case = Case::new(&rig);
        case.fills_tail = false;
        // Rows that keep to themselves: what is in the tail does not matter.
        case.verified(&|scope, x| sound(&rig, BreakKind::Live, scope, x)).expect("it is right");
        let found = case.found(&|scope, x| sum_of_rows(&rig, scope, x));
        assert_eq!((found.batch, found.cause), (1, VerifyCause::UnfilledTail { input: "x".to_owned() }));
        assert!(matches!(found.place, VerifyPlace::Segment { segment: 0, .. }));
        case.fills_tail = true;
        case.verified(&|scope, x| sum_of_rows(&rig, scope, x)).expect("the tail is zero");
        // With the batch of fewer rows first it is the same.
        case.fills_tail = false;
        case.batches.valid_rows = [2, 4];
        let found = case.found(&|scope, x| sum_of_rows(&rig, scope, x));
        assert_eq!((found.batch, found.cause), (0, VerifyCause::UnfilledTail { input: "x".to_owned() }));
    });
}

#[test]
fn a_break_that_keeps_state_is_found() {
    for_each_seed(|rig| {
        for kind in [BreakKind::Live, BreakKind::Patched] {
            let case = Case::new(&rig);
            let found = case.found(&|scope, x| {
                let h = rig.ops.add(x, x)?;
                let (mut runs, ops) = (0.0, rig.ops.clone());
                scope.break_point(BreakOptions::new("count").kind(kind), [&h], move |b| {
                    runs += 1.0;
                    let scaled = b.empty(DType::F32, b.input(0)?.shape())?;
                    ops.scale_into(b.stream(), b.input(0)?, runs, &scaled)?;
                    Ok(scaled)
                })
            });
            assert_eq!(found.cause, VerifyCause::KeptState, "{found}");
            let VerifyPlace::Break { index: 0, name, .. } = &found.place else { panic!("{found}") };
            assert_eq!(name, "count");
        }
    });
}

#[test]
fn state_that_the_eager_forward_shares_is_found_too() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let (case, runs) = (Case::new(&rig), Arc::new(AtomicUsize::new(0)));
        let found = case.found(&|scope, x| {
            let (ops, runs) = (rig.ops.clone(), runs.clone());
            scope.break_point("count", [x], move |b| {
                let scaled = b.empty(DType::F32, b.input(0)?.shape())?;
                ops.scale_into(b.stream(), b.input(0)?, runs.fetch_add(1, Ordering::Relaxed) as f32, &scaled)?;
                Ok(scaled)
            })
        });
        assert_eq!(found.cause, VerifyCause::KeptState, "{found}");
        assert!(matches!(found.place, VerifyPlace::Break { index: 0, .. }));
    });
}

#[test]
fn a_value_that_a_break_took_by_move_is_found() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let case = Case::new(&rig);
        let found = case.found(&|scope, x| {
            let (factor, ops) = (*scope.frozen_ctx::<f32>()?, rig.ops.clone());
            scope.break_point("scale", [x], move |b| {
                let scaled = b.empty(DType::F32, b.input(0)?.shape())?;
                ops.scale_into(b.stream(), b.input(0)?, factor, &scaled)?;
                Ok(scaled)
            })
        });
        assert_eq!((found.batch, found.cause), (1, VerifyCause::FrozenInBreak));
        let seen_in = "its result 0".to_owned();
        assert_eq!(found.place, VerifyPlace::Break { index: 0, name: "scale".to_owned(), seen_in });
    });
}

#[test]
fn an_input_that_the_forward_writes_is_found_where_it_does() {
    for_each_seed(|rig| {
        for kind in [BreakKind::Live, BreakKind::Patched] {
            let mut case = Case::new(&rig);
            let forward = |scope: &Scope<'_, '_>, x: &Tensor| {
                let h = scope.break_point(BreakOptions::new("pass").kind(kind), [x], |b| b.input(0).cloned())?;
                let sum = rig.ops.add(&h, x)?;
                x.copy_from(&scope.stream()?, &sum)?;
                Ok(sum)
            };
            let found = case.found(&forward);
            assert_eq!(found.cause, VerifyCause::UpdatedInput { input: "x".to_owned() });
            assert_eq!(found.place, VerifyPlace::Segment { segment: 1, seen_in: "input \"x\"".to_owned() });
            // Each batch is written anew, so that it does not matter here.
            case.options = case.options.may_update_inputs();
            case.verified(&forward).expect("it may");
        }
    });
}

#[test]
fn an_input_that_a_break_writes_is_found_where_it_does() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let case = Case::new(&rig);
        let input = case.input.clone();
        let found = case.found(&|scope, x| {
            let (h, input) = (rig.ops.add(x, x)?, input.clone());
            scope.break_point("write", [&h], move |b| {
                input.copy_from(b.stream(), b.input(0)?)?;
                b.input(0).cloned()
            })
        });
        assert_eq!(found.cause, VerifyCause::UpdatedInput { input: "x".to_owned() });
        assert!(matches!(&found.place, VerifyPlace::Break { index: 0, name, .. } if name == "write"), "{found}");
    });
}

#[test]
fn valid_rows_that_are_not_written_again_are_found() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let mut case = Case::new(&rig);
        case.batches.valid_rows = [4, 4];
        let forward = |scope: &Scope<'_, '_>, x: &Tensor| sound(&rig, BreakKind::Live, scope, x);
        let (mut capture, output) = case.record(&forward);
        let options = VerifyOptions::new().input("x", &case.input).output("y", &output);
        let runs = AtomicUsize::new(0);
        let verified = capture.verify(
            &rig.stream,
            &options,
            |batch, run| {
                // Every other time a row is left as it is.
                let rows = ROWS - runs.fetch_add(1, Ordering::Relaxed) % 2;
                let data = &case.batches.data[batch][..rows * WIDTH];
                case.input.leading_rows(rows).write(&rig.stream, data)?;
                active_forward(&case.batches.contexts[batch], run)
            },
            |scope| Ok(vec![forward(scope, &case.input)?]),
        );
        assert_eq!(found(verified).cause, VerifyCause::NotRefilled { input: "x".to_owned() });
    });
}

#[test]
fn a_tensor_that_was_replaced_is_found_as_frozen() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let case = Case::new(&rig);
        let weights = [rig.ones(&[ROWS, WIDTH]), rig.random(1, &[ROWS, WIDTH])];
        let old = |_: &Scope<'_, '_>, x: &Tensor| rig.ops.add(x, &weights[0]);
        let new = |_: &Scope<'_, '_>, x: &Tensor| rig.ops.add(x, &weights[1]);
        let (mut capture, output) = case.record(&old);
        let found = found(case.verify(&mut capture, &output, &new));
        assert_eq!((found.batch, found.cause), (0, VerifyCause::FrozenInSegment));
    });
}

#[test]
fn another_forward_than_the_recorded_one_is_said() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let case = Case::new(&rig);
        let none = |_: &Scope<'_, '_>, x: &Tensor| rig.ops.add(x, x);
        let one = |scope: &Scope<'_, '_>, x: &Tensor| sound(&rig, BreakKind::Live, scope, x);
        for (recorded, eager) in [(&none as Forward<'_>, &one as Forward<'_>), (&one, &none)] {
            let (mut capture, output) = case.record(recorded);
            let found = found(case.verify(&mut capture, &output, eager));
            assert!(matches!(found.cause, VerifyCause::OtherForward { .. }), "{found}");
            assert!(found.to_string().contains("no more breaks") && found.to_string().contains("\"scale\""), "{found}");
        }
        let narrow = |_: &Scope<'_, '_>, x: &Tensor| rig.ops.add(x, x)?.narrow(1, 0, 2);
        let (mut capture, output) = case.record(&none);
        let found = found(case.verify(&mut capture, &output, &narrow));
        assert!(matches!(found.cause, VerifyCause::OtherForward { .. }), "{found}");
    });
}

#[test]
fn kernels_that_are_not_deterministic_are_allowed_a_tolerance() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let mut case = Case::new(&rig);
        // As sums in another order: the same but for the last bits.
        let runs = Arc::new(AtomicUsize::new(0));
        let forward = |scope: &Scope<'_, '_>, x: &Tensor| {
            let (ops, runs) = (rig.ops.clone(), runs.clone());
            scope.break_point("attention", [x], move |b| {
                let scaled = b.empty(DType::F32, b.input(0)?.shape())?;
                let noise = 1e-6 * (runs.fetch_add(1, Ordering::Relaxed) % 3) as f32;
                ops.scale_into(b.stream(), b.input(0)?, 1.0 + noise, &scaled)?;
                Ok(scaled)
            })
        };
        assert_eq!(case.found(&forward).cause, VerifyCause::KeptState);
        case.options = case.options.tolerance(1e-4);
        let verified = case.verified(&forward).expect("within the tolerance");
        assert!(!verified.bit_equal);
        // What is beyond it is found all the same.
        let frozen = |scope: &Scope<'_, '_>, x: &Tensor| rig.ops.scale(x, *scope.frozen_ctx::<f32>()?);
        assert_eq!(case.found(&frozen).cause, VerifyCause::FrozenContext);
    });
}

#[test]
fn batches_that_are_kept_apart_are_never_mixed() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let mut case = Case::new(&rig);
        case.options = case.options.keep_batches_apart();
        let pairs = std::sync::Mutex::new(Vec::new());
        let forward = |scope: &Scope<'_, '_>, x: &Tensor| {
            if !scope.is_capturing() {
                pairs.lock().expect("no panic").push((*scope.frozen_ctx::<f32>()?, rig.read(x)[0]));
            }
            rig.ops.scale(x, *scope.frozen_ctx::<f32>()?)
        };
        assert_eq!(case.found(&forward).cause, VerifyCause::FrozenInSegment);
        let pairs = pairs.into_inner().expect("no panic");
        assert!(pairs.len() > 2 && pairs.iter().all(|pair| [(2.0, 1.0), (3.0, 2.0)].contains(pair)), "{pairs:?}");
    });
}

#[test]
fn what_is_given_wrong_is_a_misuse_and_the_capture_stays() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let case = Case::new(&rig);
        let forward = |scope: &Scope<'_, '_>, x: &Tensor| sound(&rig, BreakKind::Live, scope, x);
        let (mut capture, output) = case.record(&forward);
        let options = VerifyOptions::new().input("x", &case.input).output("y", &output);
        let eager = |scope: &Scope<'_, '_>| Ok(vec![forward(scope, &case.input)?]);
        let verified = capture.verify(&rig.stream, &options, |_, _| Ok(()), eager);
        assert!(matches!(verified, Err(Error::Misuse(Misuse::VerifyRuns { runs: 0 }))), "{verified:?}");
        let twice =
            |_: usize, run: &mut dyn FnMut() -> Result<()>| active_forward(&1.0_f32, || run().and_then(|()| run()));
        let verified = capture.verify(&rig.stream, &options, twice, eager);
        assert!(matches!(verified, Err(Error::Misuse(Misuse::VerifyRuns { runs: 2 }))), "{verified:?}");
        let once = |_: usize, run: &mut dyn FnMut() -> Result<()>| active_forward(&1.0_f32, run);
        let none = VerifyOptions::new().input("x", &case.input);
        let verified = capture.verify(&rig.stream, &none, once, eager);
        assert!(
            matches!(verified, Err(Error::Misuse(Misuse::VerifyOutputs { recorded: 0, eager: 1 }))),
            "{verified:?}"
        );
        let failing = |_: &Scope<'_, '_>| Err(Error::user("no weights"));
        assert!(matches!(capture.verify(&rig.stream, &options, once, failing), Err(Error::User(_))));
        capture.verify(&rig.stream, &options, once, eager).expect("it is right");
        let mut new = BreakableCapture::new(&rig.pool).expect("a capture");
        let verified = new.verify(&rig.stream, &options, once, eager);
        assert!(matches!(verified, Err(Error::Misuse(Misuse::NotRecorded))), "{verified:?}");
    });
}

/// A block that left its recording lies where the recording's own kernels write (f2: no state can be kept there): said to be an input, it is found.
#[test]
fn a_tensor_of_the_recording_that_is_kept_as_state_is_found() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let (case, kept) = (Case::new(&rig), std::cell::RefCell::new(None));
        let forward = |scope: &Scope<'_, '_>, x: &Tensor| {
            let out = rig.ops.scale(&rig.ops.scale(x, 2.0)?, 2.0)?;
            if scope.is_recording() {
                *kept.borrow_mut() = Some(scope.empty(DType::F32, x.shape())?);
            }
            Ok(out)
        };
        let (mut capture, output) = case.record(&forward);
        let cache = kept.take().expect("made");
        let options = VerifyOptions::new().input("x", &case.input).fixed_input("cache", &cache).output("y", &output);
        let verified = capture.verify(
            &rig.stream,
            &options,
            |batch, run| {
                case.fill(&case.input, batch)?;
                cache.fill_bytes(&rig.stream, 7)?;
                active_forward(&case.batches.contexts[batch], run)
            },
            |scope| Ok(vec![forward(scope, &case.input)?]),
        );
        assert_eq!(found(verified).cause, VerifyCause::UpdatedInput { input: "cache".to_owned() });
    });
}
