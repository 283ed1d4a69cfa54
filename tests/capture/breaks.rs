//! Breaks: handoffs, landings, inputs, contexts and errors (rules 1 to 6 and 17 to 25 beyond the seed's tests).

use crate::support::{Rig, assert_same, for_each_seed};
use breakable_cuda_graph::{
    BreakOptions, BreakableCapture, CaptureExecution, CaptureOptions, DType, EagerOptions, Error, Misuse,
    ReplayOptions, Result, Scope, Tensor, TensorError, active_forward, break_here, break_point, current_forward_ctx,
    eager, eager_with, is_capturing, scrub_padding_tail, trace_with,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const ROWS: usize = 4;
const WIDTH: usize = 8;

fn relu(values: &[f32]) -> Vec<f32> {
    values.iter().map(|value| value.max(0.0)).collect()
}

fn scaled(values: &[f32], factor: f32) -> Vec<f32> {
    values.iter().map(|value| value * factor).collect()
}

#[test]
fn contexts_nest_by_type_and_are_restored() {
    struct A(u32);
    struct B(u32);
    let a = || current_forward_ctx(|a: Option<&A>| a.map(|a| a.0));
    let b = || current_forward_ctx(|b: Option<&B>| b.map(|b| b.0));
    assert_eq!((a(), b()), (None, None));
    active_forward(&A(1), || {
        active_forward(&B(2), || assert_eq!((a(), b()), (Some(1), Some(2))));
        assert_eq!((a(), b()), (Some(1), None));
        active_forward(&A(3), || assert_eq!(a(), Some(3), "the innermost of its type"));
        let panicked = std::panic::catch_unwind(|| active_forward(&A(4), || std::panic::panic_any(a())));
        assert_eq!(panicked.expect_err("it panicked").downcast_ref::<Option<u32>>(), Some(&Some(4)));
        assert_eq!(a(), Some(1), "restored after a panic");
        let other = std::thread::spawn(|| current_forward_ctx(|a: Option<&A>| a.is_none()));
        assert!(other.join().expect("the thread"), "the state is the thread's own");
    });
    assert_eq!(a(), None);
}

#[test]
fn a_break_without_its_context_is_a_typed_error_that_names_it() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[ROWS, WIDTH]);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let ops = rig.ops.clone();
        let record = |capture: &mut BreakableCapture<'static>| {
            let ops = ops.clone();
            capture.record(&rig.stream, |scope| {
                scope.break_point("needs a factor", [&input], move |b| ops.scale(b.input(0)?, *b.forward_ctx::<f32>()?))
            })
        };
        let error = record(&mut capture).expect_err("no context is published");
        let text = error.to_string();
        assert!(text.contains("needs a factor") && text.contains("f32"), "{text}");

        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = active_forward(&2.0_f32, || record(&mut capture)).expect("the recording");
        let error = capture.replay(&rig.stream).map(drop).expect_err("no context is published");
        let Error::Break { name, index: 0, source } = &error else { panic!("{error:?}") };
        assert_eq!(name, "needs a factor");
        assert!(matches!(**source, Error::Misuse(Misuse::NoForwardContext { .. })), "{source:?}");

        // The capture can be replayed all the same.
        let _ = active_forward(&3.0_f32, || capture.replay(&rig.stream)).expect("a replay");
        assert_same(&rig.read(&out), &scaled(&rig.read(&input), 3.0));
    });
}

/// Rules 8 and 7: break first, break last, two in a row.
#[test]
fn segments_without_nodes_are_counted_and_not_launched() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[ROWS, WIDTH]);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture.record(&rig.stream, |scope| {
            let double = |name, x: &Tensor| {
                let ops = rig.ops.clone();
                scope.break_point(name, [x], move |b| ops.scale(b.input(0)?, 2.0))
            };
            let h = double("first", &input)?;
            let h = double("second", &h)?;
            let h = rig.ops.relu(&h)?;
            double("last", &h)
        });
        let out = out.expect("the recording");
        assert_eq!((capture.num_segments(), capture.num_breaks(), capture.num_launches()), (7, 3, 1));
        assert_eq!(capture.report().breaks, ["first", "second", "last"]);
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(
            &rig.read(&out),
            &relu(&scaled(&rig.read(&input), 8.0)).iter().map(|v| v * 1.0).collect::<Vec<_>>(),
        );
    });
}

/// Rule 21: two breaks share a handoff only when the first is no longer held.
#[test]
fn an_earlier_breaks_output_can_be_read_after_a_later_one() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[ROWS, WIDTH]);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture.record(&rig.stream, |scope| {
            let times = |factor, x: &Tensor| {
                let ops = rig.ops.clone();
                scope.break_point("scale", [x], move |b| ops.scale(b.input(0)?, factor))
            };
            let twice = times(2.0, &input)?;
            let thrice = times(3.0, &input)?;
            assert_ne!(twice.address(), thrice.address());
            let sum = rig.ops.add(&twice, &thrice)?;
            let address = twice.address();
            drop((twice, thrice));
            let again = times(1.0, &sum)?;
            let _ = address;
            rig.ops.add(&again, &sum)
        });
        let out = out.expect("the recording");
        let _ = capture.replay(&rig.stream).expect("a replay");
        let expected: Vec<f32> = rig.read(&input).iter().map(|v| 2.0 * (v * 2.0 + v * 3.0)).collect();
        assert_same(&rig.read(&out), &expected);
    });
}

/// The handoff block returns to the pool with its last tensor: not before, and not later.
#[test]
fn handoffs_share_memory_when_their_lifetimes_allow_it() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[ROWS, WIDTH]);
        let addresses = std::cell::RefCell::new(Vec::new());
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let _out = capture
            .record(&rig.stream, |scope| {
                let mut x = input.clone();
                for _ in 0..6 {
                    let ops = rig.ops.clone();
                    x = scope.break_point("scale", [&x], move |b| ops.scale(b.input(0)?, 2.0))?;
                    addresses.borrow_mut().push(x.address());
                }
                Ok(x)
            })
            .expect("the recording");
        let distinct: std::collections::BTreeSet<u64> = addresses.borrow().iter().copied().collect();
        assert_eq!(distinct.len(), 2, "two are alive at a time: {:x?}", addresses.borrow());
        let _ = capture.replay(&rig.stream).expect("a replay");
    });
}

/// Rule 22.
#[test]
fn a_break_may_return_several_tensors_or_none() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[ROWS, WIDTH]);
        let runs = Arc::new(AtomicUsize::new(0));
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let (sum, list) = capture
            .record(&rig.stream, |scope| {
                let counted = runs.clone();
                scope.break_point("none", [&input], move |_| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                })?;
                let ops = rig.ops.clone();
                let (a, b) = scope.break_point("pair", [&input], move |b| {
                    Ok((ops.scale(b.input(0)?, 2.0)?, ops.scale(b.input(0)?, 3.0)?))
                })?;
                let ops = rig.ops.clone();
                let list: Vec<Tensor> = scope.break_point("list", [Some(&a), None], move |b| {
                    assert!(b.optional_input(1)?.is_none(), "absent inputs stay absent");
                    assert!(b.input(1).is_err() && b.input(2).is_err());
                    (1..4_u8).map(|factor| ops.scale(b.input(0)?, f32::from(factor))).collect()
                })?;
                Ok((rig.ops.add(&a, &b)?, list))
            })
            .expect("the recording");
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_eq!(runs.load(Ordering::Relaxed), 2, "once at capture, once in the replay");
        let x = rig.read(&input);
        let expected: Vec<f32> = x.iter().map(|v| v * 2.0 + v * 3.0).collect();
        assert_same(&rig.read(&sum), &expected);
        for (factor, tensor) in (1..4_u8).zip(&list) {
            assert_same(&rig.read(tensor), &scaled(&scaled(&x, 2.0), f32::from(factor)));
        }
    });
}

#[test]
fn another_number_of_results_than_at_capture_is_a_typed_error() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[ROWS, WIDTH]);
        let more = Arc::new(AtomicUsize::new(2));
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let (ops, count) = (rig.ops.clone(), more.clone());
        let recorded = capture.record(&rig.stream, |scope| {
            scope.break_point("list", [&input], move |b| -> Result<Vec<Tensor>> {
                (0..count.load(Ordering::Relaxed)).map(|_| ops.relu(b.input(0)?)).collect()
            })
        });
        let _held = recorded.expect("the recording");
        for count in [1, 3] {
            more.store(count, Ordering::Relaxed);
            let error = capture.replay(&rig.stream).map(drop).expect_err("a break");
            let Error::Break { source, .. } = &error else { panic!("{error:?}") };
            assert!(
                matches!(**source, Error::Misuse(Misuse::OutputCount { expected: 2, got }) if got == count),
                "{source:?}"
            );
        }
    });
}

/// Rule 19: the operation may write the handoff itself; the same place is address, shape, strides and element type.
#[test]
fn an_operation_may_write_the_handoff_itself() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[ROWS, WIDTH]);
        let in_place = Arc::new(AtomicUsize::new(0));
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let (ops, seen) = (rig.ops.clone(), in_place.clone());
        let out = capture
            .record(&rig.stream, |scope| {
                scope.break_point("in place", [&input], move |b| match b.output(0) {
                    Some(handoff) => {
                        seen.fetch_add(1, Ordering::Relaxed);
                        ops.scale_into(b.stream(), b.input(0)?, 2.0, &handoff)?;
                        Ok(handoff)
                    }
                    None => ops.scale(b.input(0)?, 2.0),
                })
            })
            .expect("the recording");
        let _ = capture.replay_with(&rig.stream, ReplayOptions::default().valid_rows(3)).expect("a replay");
        assert_eq!(in_place.load(Ordering::Relaxed), 1);
        let mut expected = scaled(&rig.read(&input), 2.0);
        expected[3 * WIDTH..].fill(0.0);
        assert_same(&rig.read(&out), &expected);
    });
}

/// Rule 20.
#[test]
fn results_that_do_not_fit_their_handoff_are_typed_errors() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[ROWS, WIDTH]);
        let try_result = |make: fn(&Rig, &Tensor) -> Tensor| {
            let result = make(&rig, &input);
            let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
            let recorded = capture.record(&rig.stream, |scope| {
                let handoff = rig.ops.empty_like(&input)?;
                scope.break_here("misfit", handoff, [&input], move |_| Ok(result.clone()))
            });
            match recorded.expect_err("it does not fit") {
                Error::Capture(error) => match *error.source {
                    Error::Break { source, .. } => *source,
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            }
        };
        let more_rows = try_result(|rig, _| rig.zeros(&[ROWS + 1, WIDTH]));
        assert!(matches!(more_rows, Error::Tensor(TensorError::Shape { .. })), "{more_rows:?}");
        let wider = try_result(|rig, _| rig.zeros(&[ROWS, WIDTH + 1]));
        assert!(matches!(wider, Error::Tensor(TensorError::Shape { .. })), "{wider:?}");
        let other_rank = try_result(|rig, _| rig.zeros(&[ROWS, WIDTH, 1]));
        assert!(matches!(other_rank, Error::Tensor(TensorError::Shape { .. })), "{other_rank:?}");
        let other_type = try_result(|rig, _| {
            Tensor::from_slice(&rig.stream, &[0_i32; ROWS * WIDTH], &[ROWS, WIDTH]).expect("a tensor")
        });
        assert!(matches!(other_type, Error::Tensor(TensorError::DType { .. })), "{other_type:?}");
        let host = try_result(|_, _| Tensor::host(&[0.0_f32; ROWS * WIDTH], &[ROWS, WIDTH]).expect("a tensor"));
        assert!(matches!(host, Error::Tensor(TensorError::Location { .. })), "{host:?}");
    });
}

#[test]
fn a_result_that_overlaps_its_handoff_is_refused() {
    for_each_seed(|rig| {
        let whole = rig.zeros(&[ROWS + 1, WIDTH]);
        let handoff = whole.leading_rows(ROWS);
        let shifted = whole.narrow(0, 1, ROWS).expect("a view");
        let landed = eager(&rig.pool, &rig.stream, |scope| {
            scope.break_here("overlap", handoff.clone(), [&whole], |_| Ok(shifted.clone()))
        });
        assert!(matches!(landed, Err(Error::Tensor(TensorError::Overlap))), "{landed:?}");
    });
}

/// Rules 20 and 27: fewer rows fill the leading ones; the padded tail is zero where it was declared to be rows.
#[test]
fn landings_fill_leading_rows_and_zero_the_tail() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[ROWS, WIDTH]);
        let rows = Arc::new(AtomicUsize::new(ROWS));
        for declared in [true, false] {
            let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
            let (ops, live) = (rig.ops.clone(), rows.clone());
            let options = if declared { BreakOptions::new("live") } else { BreakOptions::new("live").not_rows() };
            let handoff = rig.ones(&[ROWS, WIDTH]);
            let out = capture
                .record(&rig.stream, |scope| {
                    scope.break_here(options, handoff.clone(), [&input], move |b| {
                        ops.scale(&b.input(0)?.leading_rows(live.load(Ordering::Relaxed)), 2.0)
                    })
                })
                .expect("the recording");
            for (result_rows, valid) in [(4, None), (2, None), (2, Some(2)), (4, Some(3)), (3, Some(9)), (4, Some(0))] {
                handoff.write(&rig.stream, &[7.0_f32; ROWS * WIDTH]).expect("a write");
                rows.store(result_rows, Ordering::Relaxed);
                let options =
                    valid.map_or_else(ReplayOptions::default, |rows| ReplayOptions::default().valid_rows(rows));
                let _ = capture.replay_with(&rig.stream, options).expect("a replay");
                let mut expected = vec![7.0; ROWS * WIDTH];
                let doubled = scaled(&rig.read(&input), 2.0);
                expected[..result_rows * WIDTH].copy_from_slice(&doubled[..result_rows * WIDTH]);
                if let Some(valid) = valid.filter(|&valid| declared && valid < ROWS) {
                    expected[valid * WIDTH..].fill(0.0);
                }
                assert_eq!(
                    rig.read(&out),
                    expected,
                    "{result_rows} rows of which {valid:?} valid, declared {declared}"
                );
            }
        }
    });
}

/// A break that writes valid rows only, with the tail poisoned; it is told the valid rows.
#[test]
fn the_next_segment_reads_zeros_in_the_padded_tail() {
    const BUCKET: usize = 8;
    for_each_seed(|rig| {
        let input = rig.random(1, &[BUCKET, WIDTH]);
        let weight = rig.random(2, &[WIDTH, WIDTH]);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let (ops, nan) = (rig.ops.clone(), f32::NAN);
        let out = capture
            .record(&rig.stream, |scope| {
                let h = scope.break_point("variable length", [&input], move |b| {
                    let whole = b.empty(b.input(0)?.dtype(), b.input(0)?.shape())?;
                    ops.scale_into(b.stream(), b.input(0)?, nan, &whole)?;
                    let live = b.valid_input(0)?;
                    assert_eq!(live.rows(), b.valid_rows()?.unwrap_or(BUCKET));
                    ops.scale_into(b.stream(), &live, 2.0, &whole.leading_rows(live.rows()))?;
                    Ok(whole)
                })?;
                rig.ops.matmul(&h, &weight)
            })
            .expect("the recording");
        for rows in [1, 3, 8, 0] {
            let _ = capture.replay_with(&rig.stream, ReplayOptions::default().valid_rows(rows)).expect("a replay");
            let got = rig.read(&out);
            let expected = eager(&rig.pool, &rig.stream, |_| {
                rig.ops.matmul(&rig.ops.scale(&input.leading_rows(rows), 2.0)?, &weight)
            });
            assert_same(&got[..rows * WIDTH], &rig.read(&expected.expect("eager")));
            assert!(got[rows * WIDTH..].iter().all(|&value| value == 0.0), "{rows}: {got:?}");
        }
    });
}

/// Rule 24: a break does not pin what its own recording rewrites, and pins everything else.
#[test]
fn inputs_are_held_weakly_where_the_recording_rewrites_them() {
    for_each_seed(|rig| {
        let pool_bytes = |rig: &Rig| rig.pool.usage().expect("usage").in_use;
        let before = pool_bytes(&rig);
        let outside = rig.random(1, &[ROWS, WIDTH]);
        let weak = outside.downgrade();
        let expected = relu(&scaled(&rig.read(&outside), 3.0));
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture
            .record(&rig.stream, |scope| {
                let h = rig.ops.scale(&outside, 1.0)?;
                let ops = rig.ops.clone();
                scope.break_point("both", [&h, &outside], move |b| {
                    ops.relu(&ops.add(&ops.scale(b.input(1)?, 2.0)?, b.input(0)?)?)
                })
            })
            .expect("the recording");
        drop(outside);
        assert!(weak.is_live(), "an input from outside is held by the capture");
        assert_eq!(pool_bytes(&rig) - before, 512, "only the output's block is out");
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&out), &expected);
        drop(capture);
        assert!(!weak.is_live(), "and no longer than that");
    });
}

/// One pool, largest bucket first, breaks that read their segment's own tensors; every earlier bucket still replays.
#[test]
fn later_buckets_do_not_disturb_the_break_inputs_of_earlier_ones() {
    for_each_seed(|rig| {
        let weights: Vec<Tensor> = (0..3).map(|at| rig.random(at, &[WIDTH, WIDTH])).collect();
        let input = rig.random(9, &[64, WIDTH]);
        let forward = |x: &Tensor, breaks: bool| -> Result<Tensor> {
            let [q, k, v] = [0, 1, 2].map(|at| rig.ops.matmul(x, &weights[at]));
            let (q, k, v) = (q?, k?, v?);
            let ops = rig.ops.clone();
            if breaks {
                break_point("attention", [&q, &k, &v], move |b| {
                    ops.add(&ops.add(b.input(0)?, b.input(1)?)?, b.input(2)?)
                })
            } else {
                ops.add(&ops.add(&q, &k)?, &v)
            }
        };
        let mut captures = Vec::new();
        for rows in [64, 32, 16] {
            let x = input.leading_rows(rows);
            let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
            let out = capture.record(&rig.stream, |_| forward(&x, true)).expect("the recording");
            captures.push((capture, out, x));
        }
        for at in [0, 2, 1, 0] {
            let (capture, out, x) = &mut captures[at];
            let _ = capture.replay(&rig.stream).expect("a replay");
            let got = rig.read(out);
            let expected = eager(&rig.pool, &rig.stream, |_| forward(x, false)).expect("eager");
            assert_same(&got, &rig.read(&expected));
        }
    });
}

/// Rule 25.
#[test]
fn an_error_in_a_break_stops_the_replay_and_the_capture_can_be_replayed() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[ROWS, WIDTH]);
        let (fail, later) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture
            .record(&rig.stream, |scope| {
                let (ops, fail) = (rig.ops.clone(), fail.clone());
                let h = scope.break_point("may fail", [&input], move |b| match fail.load(Ordering::Relaxed) {
                    true => Err(Error::user("the cache is full")),
                    false => ops.relu(b.input(0)?),
                })?;
                let (ops, later) = (rig.ops.clone(), later.clone());
                scope.break_point("later", [&h], move |b| {
                    later.fetch_add(1, Ordering::Relaxed);
                    ops.scale(b.input(0)?, 2.0)
                })
            })
            .expect("the recording");
        fail.store(true, Ordering::Relaxed);
        let error = capture.replay(&rig.stream).map(drop).expect_err("the break fails");
        assert!(error.to_string().contains("may fail") && error.to_string().contains("the cache is full"), "{error}");
        assert_eq!(later.load(Ordering::Relaxed), 1, "later steps do not run");
        assert!(breakable_cuda_graph::current_stream().is_err(), "the thread's state is restored");
        fail.store(false, Ordering::Relaxed);
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&out), &scaled(&relu(&rig.read(&input)), 2.0));
    });
}

/// Rules 6 and 23.
#[test]
fn capturing_is_true_in_segments_only() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[ROWS, WIDTH]);
        assert!(!is_capturing());
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let _out = capture
            .record(&rig.stream, |scope| {
                assert!(is_capturing() && scope.is_capturing());
                let ops = rig.ops.clone();
                let h = scope.break_point("break", [&input], move |b| {
                    assert!(!is_capturing());
                    ops.relu(b.input(0)?)
                })?;
                assert!(is_capturing());
                Ok(h)
            })
            .expect("the recording");
        assert!(!is_capturing());
        let _ = capture.replay(&rig.stream).expect("a replay");
    });
}

/// Rule 13.
#[test]
fn a_capture_that_runs_through_sees_real_data_and_its_first_result_is_valid() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[ROWS, WIDTH]);
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let options = CaptureOptions::default().execution(CaptureExecution::RunThrough);
        let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
        let (ops, look) = (rig.ops.clone(), seen.clone());
        let out = capture
            .record(&rig.stream, |scope| {
                let h = rig.ops.scale(&input, 2.0)?;
                let h = scope.break_point("look", [&h], move |b| {
                    *look.lock().expect("seen") = b.input(0)?.read::<f32>(b.stream())?;
                    ops.relu(b.input(0)?)
                })?;
                rig.ops.scale(&h, 0.5)
            })
            .expect("the recording");
        let doubled = scaled(&rig.read(&input), 2.0);
        assert_same(&seen.lock().expect("seen"), &doubled);
        assert_same(&rig.read(&out), &scaled(&relu(&doubled), 0.5));
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&out), &scaled(&relu(&doubled), 0.5));
    });
}

/// Break operations may borrow what outlives the capture.
#[test]
fn operations_borrow_what_outlives_the_capture() {
    for_each_seed(|rig| {
        let factors = vec![2.0_f32, 3.0];
        let input = rig.random(1, &[ROWS, WIDTH]);
        let (ops, borrowed) = (&rig.ops, &factors);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture
            .record(&rig.stream, |scope| {
                scope.break_point("borrows", [&input], move |b| ops.scale(b.input(0)?, borrowed[1]))
            })
            .expect("the recording");
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&out), &scaled(&rig.read(&input), 3.0));
    });
}

#[test]
fn a_swallowed_error_of_a_break_does_not_save_the_recording() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[ROWS, WIDTH]);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let recorded = capture.record(&rig.stream, |scope| {
            let failed: Result<Tensor> = scope.break_point("fails", [&input], |_| Err(Error::user("no")));
            assert!(failed.is_err());
            let ops = rig.ops.clone();
            let after = break_here("after", rig.ops.empty_like(&input)?, [&input], move |b| ops.relu(b.input(0)?));
            assert!(after.is_err(), "nothing can be recorded after it");
            Ok(())
        });
        assert!(recorded.is_err(), "whatever the forward makes of it");
        assert!(capture.is_poisoned());
        assert!(matches!(capture.replay(&rig.stream), Err(Error::Misuse(Misuse::Poisoned))));
    });
}

/// A forward with a break of these options.
type Forward<'a> = dyn Fn(&Scope<'_, '_>, BreakOptions) -> Result<Tensor> + 'a;

/// Rule 57: recorded, traced or eager with padding, by each kind of break that has handoffs.
#[test]
fn a_handoff_whose_leading_dimension_is_not_the_bucket_is_refused_unless_it_is_declared() {
    const BUCKET: usize = 16;
    let expect_refused = |error: Error, result: usize| {
        let text = error.to_string();
        let cause = match error {
            Error::Capture(error) => *error.source,
            other => other,
        };
        let source = match cause {
            Error::Break { source, .. } => *source,
            other => other,
        };
        let Error::Misuse(Misuse::NotTheBucketsRows { break_name, result: at, shape, bucket }) = source else {
            panic!("{text}")
        };
        assert_eq!((break_name.as_str(), at, &shape[..], bucket), ("heads", result, &[ROWS, BUCKET][..], BUCKET));
        assert!(text.contains("not_rows"), "{text}");
    };
    for_each_seed(|rig| {
        let x = rig.ones(&[ROWS, BUCKET]);
        let (rows, into) = (rig.ones(&[BUCKET, ROWS]), rig.zeros(&[ROWS, BUCKET]));
        let padded = EagerOptions::default().valid_rows(3).bucket(BUCKET);
        for options in [BreakOptions::new("heads"), BreakOptions::new("heads").patched()] {
            let pair = |scope: &Scope<'_, '_>, options: BreakOptions| {
                scope
                    .break_point(options, [&rows, &x], |b| Ok((b.input(0)?.clone(), b.input(1)?.clone())))
                    .map(|(_, second)| second)
            };
            let here = |scope: &Scope<'_, '_>, options: BreakOptions| {
                scope.break_here(options, into.clone(), [&x], |b| b.input(0).cloned())
            };
            let forwards: [(&Forward, usize); 2] = [(&pair, 1), (&here, 0)];
            for (forward, result) in forwards {
                let record = |options: BreakOptions| {
                    let with = CaptureOptions::default().bucket(BUCKET);
                    let mut capture = BreakableCapture::with_options(&rig.pool, with).expect("a capture");
                    let out = capture.record(&rig.stream, |scope| forward(scope, options))?;
                    let _ = capture.replay_with(&rig.stream, ReplayOptions::default().valid_rows(3))?;
                    Ok(rig.read(&out))
                };
                let eagerly = |with| eager_with(&rig.pool, &rig.stream, with, |scope| forward(scope, options.clone()));
                expect_refused(record(options.clone()).expect_err("undeclared"), result);
                expect_refused(eagerly(padded).expect_err("undeclared"), result);
                let traced = trace_with(&rig.pool, &rig.stream, padded, |scope| forward(scope, options.clone()));
                expect_refused(traced.map(drop).expect_err("undeclared"), result);
                // Nothing is padded, so nothing is scrubbed in the wrong place.
                eagerly(EagerOptions::default().valid_rows(BUCKET).bucket(BUCKET)).expect("no padding");
                let declared = options.clone().not_rows();
                let out = eager_with(&rig.pool, &rig.stream, padded, |scope| forward(scope, declared.clone()));
                assert_same(&rig.read(&out.expect("declared")), &[1.0; ROWS * BUCKET]);
                assert_same(&record(declared).expect("declared"), &[1.0; ROWS * BUCKET]);
            }
        }
    });
}

/// Rule 57: a scalar has no rows, whatever is valid.
#[test]
fn a_scalar_has_no_padded_tail() {
    for_each_seed(|rig| {
        let x = rig.ones(&[]);
        for options in [BreakOptions::new("number"), BreakOptions::new("number").patched()] {
            for bucket in [1, 8] {
                let with = CaptureOptions::default().bucket(bucket).valid_rows(0);
                let mut capture = BreakableCapture::with_options(&rig.pool, with).expect("a capture");
                let forward = |scope: &Scope<'_, '_>| {
                    scope.break_point(options.clone(), [&x], |b| {
                        let number = b.empty(DType::F32, &[])?;
                        number.copy_from(b.stream(), b.input(0)?).map(|()| number)
                    })
                };
                let out = capture.record(&rig.stream, forward).expect("a recording");
                let _ = capture.replay_with(&rig.stream, ReplayOptions::default().valid_rows(0)).expect("a replay");
                assert_same(&rig.read(&out), &[1.0]);
                let padded = EagerOptions::default().valid_rows(0).bucket(bucket);
                let out = eager_with(&rig.pool, &rig.stream, padded, forward).expect("an eager run");
                assert_same(&rig.read(&out), &[1.0]);
                scrub_padding_tail(&rig.stream, 0, [&x]).expect("nothing to scrub");
                assert_same(&rig.read(&x), &[1.0]);
            }
        }
    });
}

/// A break inside a break is a direct call, in a padded eager run as in a replay: its results are neither scrubbed nor refused.
#[test]
fn what_a_break_inside_a_break_returns_is_not_scrubbed() {
    for_each_seed(|rig| {
        let x = rig.ones(&[ROWS, WIDTH]);
        let ops = rig.ops.clone();
        let forward = move |scope: &Scope<'_, '_>| {
            let ops = ops.clone();
            scope.break_point("outer", [&x], move |b| {
                let part = break_point("inner", [&b.input(0)?.leading_rows(1)], |b| b.input(0).cloned())?;
                let whole = break_point("whole", [b.input(0)?], |b| b.input(0).cloned())?;
                assert_eq!(part.rows(), 1);
                // The last rows come first, so that what is valid shows what was not.
                let out = b.empty(whole.dtype(), whole.shape())?;
                ops.scale_into(b.stream(), &whole.narrow(0, 2, 2)?, 2.0, &out.leading_rows(2))?;
                ops.scale_into(b.stream(), &whole.leading_rows(2), 2.0, &out.narrow(0, 2, 2)?)?;
                Ok(out)
            })
        };
        let padded = EagerOptions::default().valid_rows(2).bucket(ROWS);
        let out = eager_with(&rig.pool, &rig.stream, padded, forward).expect("an eager run");
        assert_same(&rig.read(&out), &[[2.0; 2 * WIDTH], [0.0; 2 * WIDTH]].concat());
    });
}
