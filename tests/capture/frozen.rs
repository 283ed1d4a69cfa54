//! What is live in a forward and what a recording freezes (rule 53), and what breaks are told of valid rows while they are recorded.

use crate::support::{Rig, assert_same, driver, for_each_driver, for_each_seed};
use breakable_cuda_graph::{
    Break, BreakKind, BreakOptions, BreakableCapture, CaptureExecution, CaptureOptions, EagerOptions, Error,
    FrozenPlace, Misuse, ReplayOptions, Result, Scope, Tensor, active_forward, break_point, current_forward_ctx, eager,
    eager_with, is_capturing, is_recording, is_warming_up, trace,
};
use std::sync::{Arc, Mutex};

/// A batch that carries a tensor, as an engine's does.
struct Batch {
    bias: Tensor,
}

fn batch(rig: &Rig, value: f32) -> Batch {
    Batch { bias: Tensor::from_slice(&rig.stream, &[value; 4], &[4]).expect("a tensor") }
}

/// The misuse in a recording's error.
fn misuse(error: &Error) -> &Misuse {
    match error {
        Error::Capture(error) => misuse(&error.source),
        Error::Break { source, .. } => misuse(source),
        Error::Misuse(misuse) => misuse,
        _ => panic!("{error:?}"),
    }
}

#[test]
fn a_segment_does_not_take_the_batch_of_its_recording() {
    let rig = Rig::new(&driver());
    let (x, first) = (rig.ones(&[4]), batch(&rig, 10.0));
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let recorded = active_forward(&first, || {
        capture.record(&rig.stream, |scope| {
            let h = scope.break_point("before", [&x], |b| b.input(0).cloned())?;
            rig.ops.add(&h, &scope.forward_ctx::<Batch>()?.bias)
        })
    });
    let error = recorded.expect_err("a segment would add the first batch's bias for ever");
    let Misuse::FrozenContext { type_name, place } = misuse(&error) else { panic!("{error:?}") };
    assert!(type_name.ends_with("Batch"), "{type_name}");
    // Segments and breaks are counted apart: this is the one after the break.
    assert_eq!(*place, FrozenPlace::Segment(Some(1)));
    let text = error.to_string();
    assert!(
        ["segment 1", "Batch", "live or patched break", "`frozen_ctx`"].iter().all(|part| text.contains(part)),
        "{text}"
    );
    assert_eq!(Error::from(misuse(&error).clone()).code(), 565);
    // Nothing was published: that is another error, and there is nothing to freeze.
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let error = capture.record(&rig.stream, |scope| scope.frozen_ctx::<Batch>().map(drop)).expect_err("no batch");
    assert!(matches!(misuse(&error), Misuse::NoForwardContext { .. }), "{error:?}");
}

#[test]
fn what_is_frozen_on_purpose_is_the_recordings_in_every_replay() {
    for_each_seed(|rig| {
        let x = rig.ones(&[4]);
        let (first, second) = (batch(&rig, 10.0), batch(&rig, 20.0));
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = active_forward(&first, || {
            capture.record(&rig.stream, |scope| {
                let h = rig.ops.add(&x, &scope.frozen_ctx::<Batch>()?.bias)?;
                let ops = rig.ops.clone();
                let h = scope.break_point(BreakOptions::new("inline").inline(), [&h], move |b| {
                    ops.add(b.input(0)?, &b.frozen_ctx::<Batch>()?.bias)
                })?;
                let bias = current_forward_ctx(|batch: Option<&Batch>| batch.map(|batch| batch.bias.clone()));
                let h = rig.ops.add(&h, &bias.expect("published"))?;
                let ops = rig.ops.clone();
                scope.break_point("live", [&h], move |b| ops.add(b.input(0)?, &b.forward_ctx::<Batch>()?.bias))
            })
        })
        .expect("a recording");
        let _ = active_forward(&second, || capture.replay(&rig.stream)).expect("a replay");
        assert_same(&rig.read(&out), &[1.0 + 3.0 * 10.0 + 20.0; 4]);
    });
}

/// What a break says to each way of asking: the context, the frozen one, the valid rows, an input's, the frozen ones.
fn asked(b: &Break<'_>) -> [Result<f32>; 5] {
    let rows = |rows: Option<usize>| rows.map_or(-1.0, |rows| rows as f32);
    [
        b.forward_ctx::<f32>().copied(),
        b.frozen_ctx::<f32>().copied(),
        b.valid_rows().map(rows),
        b.valid_input(0).map(|input| input.rows() as f32),
        Ok(rows(b.frozen_rows())),
    ]
}

#[test]
fn an_inline_break_is_refused_what_is_live_and_so_are_the_breaks_in_it() {
    for nested in [false, true] {
        let rig = Rig::new(&driver());
        let x = rig.ones(&[4, 2]);
        let answers = Arc::new(Mutex::new(None));
        let told = answers.clone();
        let ask = move |b: &Break<'_>| {
            *told.lock().expect("no panic") = Some(asked(b));
            b.input(0).cloned()
        };
        let mut capture =
            BreakableCapture::with_options(&rig.pool, CaptureOptions::default().valid_rows(3)).expect("a capture");
        let recorded = active_forward(&5.0_f32, || {
            capture.record(&rig.stream, |scope| {
                let h = rig.ops.relu(&x)?;
                scope.break_point(BreakOptions::new("outer").inline(), [&h], move |b| match nested {
                    false => ask(b),
                    true => break_point("inner", [b.input(0)?], ask.clone()),
                })
            })
        });
        // A refusal that the operation bears has no effect.
        recorded.expect("a recording");
        let name = if nested { "inner" } else { "outer" };
        let answers = answers.lock().expect("no panic").take().expect("it ran");
        let [ctx, frozen, rows, input, frozen_rows] = answers;
        let ctx = ctx.expect_err("it would be frozen");
        let place = FrozenPlace::InlineBreak(name.to_owned());
        assert!(matches!(misuse(&ctx), Misuse::FrozenContext { place: told, .. } if *told == place), "{ctx:?}");
        for error in [rows, input] {
            let error = error.expect_err("it would be frozen");
            assert_eq!(*misuse(&error), Misuse::FrozenRows { place: place.clone() });
            let text = error.to_string();
            assert!(text.contains(name) && text.contains("`frozen_rows`"), "{text}");
            assert_eq!(error.code(), 566);
        }
        assert_eq!(frozen.expect("it is published"), 5.0);
        // A break in a break runs straight through: it is told what an eager forward's is.
        assert_eq!(frozen_rows.expect("no error"), if nested { -1.0 } else { 3.0 });
    }
}

#[test]
fn live_and_patched_breaks_are_told_the_valid_rows_when_they_are_recorded_too() {
    let record = CaptureOptions::default();
    let runs = CaptureOptions::default().execution(CaptureExecution::RunThrough);
    let cases = [
        (record.clone(), -1.0),
        (record.clone().valid_rows(0), 0.0),
        (record.bucket(4), -1.0),
        (runs.clone(), -1.0),
        (runs.clone().bucket(4), 4.0),
        (runs.bucket(4).valid_rows(1), 1.0),
    ];
    for kind in [BreakKind::Live, BreakKind::Patched] {
        for (options, expected) in cases.clone() {
            let rig = Rig::new(&driver());
            let x = rig.ones(&[4, 2]);
            let answers = Arc::new(Mutex::new(Vec::new()));
            let (told, ops) = (answers.clone(), rig.ops.clone());
            let mut capture = BreakableCapture::with_options(&rig.pool, options.clone()).expect("a capture");
            let out = active_forward(&1.0_f32, || {
                capture.record(&rig.stream, |scope| {
                    let h = rig.ops.relu(&x)?;
                    scope.break_point(BreakOptions::new("b").kind(kind), [&h], move |b| {
                        told.lock().expect("no panic").push(asked(b).map(|answer| answer.expect("live")));
                        let y = b.empty(b.input(0)?.dtype(), b.input(0)?.shape())?;
                        ops.scale_into(b.stream(), b.input(0)?, 2.0, &y)?;
                        Ok(y)
                    })
                })
            })
            .expect("a recording");
            let seen = std::mem::take(&mut *answers.lock().expect("no panic"));
            let rows = if expected < 0.0 { 4.0 } else { expected };
            assert!(
                !seen.is_empty() && seen.iter().all(|seen| *seen == [1.0, 1.0, expected, rows, expected]),
                "{options:?} {seen:?}"
            );
            let replayed = ReplayOptions::default().valid_rows(2);
            let _ = active_forward(&9.0_f32, || capture.replay_with(&rig.stream, replayed)).expect("a replay");
            let seen = answers.lock().expect("no panic").clone();
            assert!(!seen.is_empty() && seen.iter().all(|seen| *seen == [9.0, 9.0, 2.0, 2.0, 2.0]), "{seen:?}");
            assert_same(&rig.read(&out), &[2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0]);
        }
    }
}

/// With segments that run, the rows that the recording was not told of are zero in its own first results too.
#[test]
fn a_recording_that_is_told_its_rows_scrubs_the_rest() {
    for_each_seed(|rig| {
        let x = rig.ones(&[4, 2]);
        let options = CaptureOptions::default().execution(CaptureExecution::RunThrough).bucket(4).valid_rows(1);
        let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
        let ops = rig.ops.clone();
        let out = capture
            .record(&rig.stream, |scope| {
                let h = scope.break_point("b", [&x], move |b| ops.scale(b.input(0)?, 3.0))?;
                rig.ops.scale(&h, 1.0)
            })
            .expect("a recording");
        assert_same(&rig.read(&out), &[3.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    });
}

#[test]
fn an_eager_forward_reads_everything_everywhere() {
    let rig = Rig::new(&driver());
    let x = rig.ones(&[4, 2]);
    let forward = |scope: &Scope<'_, 'static>| {
        assert_eq!(*scope.forward_ctx::<f32>()?, 7.0);
        scope.break_point(BreakOptions::new("inline").inline(), [&x], |b| {
            let [ctx, frozen, rows, input, _] = asked(b);
            assert_eq!((ctx?, frozen?, rows?, input?), (7.0, 7.0, -1.0, 4.0));
            Ok(())
        })
    };
    active_forward(&7.0_f32, || eager(&rig.pool, &rig.stream, forward)).expect("eager");
}

#[test]
fn capturing_recording_and_warming_up_are_told_apart() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let x = rig.ones(&[4]);
        let state = || (is_capturing(), is_recording(), is_warming_up());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let forward = |scope: &Scope<'_, '_>| {
            let here = seen.clone();
            here.lock().expect("no panic").push(state());
            let h = scope.break_point("live", [&x], move |b| {
                here.lock().expect("no panic").push(state());
                b.input(0).cloned()
            })?;
            let (here, ops) = (seen.clone(), rig.ops.clone());
            let h = scope.break_point(BreakOptions::new("inline").inline(), [&h], move |b| {
                here.lock().expect("no panic").push(state());
                ops.add(b.input(0)?, b.input(0)?)
            });
            assert_eq!(scope.is_recording(), is_recording());
            h
        };
        let took = || std::mem::take(&mut *seen.lock().expect("no panic"));
        eager(&rig.pool, &rig.stream, forward).expect("a forward");
        assert_eq!(took(), [(false, false, false); 3]);
        eager_with(&rig.pool, &rig.stream, EagerOptions::default().warm_up(), forward).expect("a warm-up");
        assert_eq!(took(), [(false, false, true); 3]);
        trace(&rig.pool, &rig.stream, forward).expect("a trace");
        assert_eq!(took(), [(false, true, false); 3]);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        capture.record(&rig.stream, forward).expect("a recording");
        assert_eq!(took(), [(true, true, false), (false, true, false), (true, true, false)]);
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_eq!(took(), [(false, false, false)]);
        assert_eq!(state(), (false, false, false));
    });
}
