//! Each way in which a composite graph can be launched gives what an eager run gives.

use super::model::{Captured, Live, ROWS, body, forward};
use crate::support::{Rig, driver, for_each_driver, random_values};
use breakable_cuda_graph::BreakKind::{Live as Alive, Patched};
use breakable_cuda_graph::memory::PoolPlan;
use breakable_cuda_graph::memory::planner::PlanOptions;
use breakable_cuda_graph::sys::Call;
use breakable_cuda_graph::{
    BreakKind, BreakOptions, BreakableCapture, CaptureExecution, CaptureOptions, DType, PatchStats, Reconfigure,
    active_forward, trace,
};

const ALL: [BreakKind; 3] = [Patched; 3];

#[test]
fn recorded_breaks_are_one_launch_and_read_live_values() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let mut captured = Captured::new(&rig, &ALL, CaptureOptions::default());
        let capture = &captured.capture;
        assert_eq!((capture.num_segments(), capture.num_breaks(), capture.num_launches()), (7, 3, 1));
        assert_eq!(capture.report().breaks, ["break 0", "break 1", "break 2"]);
        for factor in [2.0, 2.0, -3.0, 0.25] {
            captured.check(Live::new(factor), None);
        }
        let stats = captured.capture.patch_stats();
        assert_eq!((stats.rebuilt, stats.fell_back, stats.execs), (0, 0, 1), "{stats:?}");
        assert_eq!((stats.patched, stats.unchanged), (9, 3), "the second replay changes nothing: {stats:?}");
    });
}

#[test]
fn live_and_recorded_breaks_in_any_order() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        for (kinds, launches) in [
            ([Alive, Patched, Alive], 3),
            ([Patched, Alive, Patched], 2),
            ([Alive, Alive, Patched], 3),
            ([Patched, Patched, Alive], 2),
        ] {
            for execution in [CaptureExecution::Record, CaptureExecution::RunThrough] {
                let mut captured = Captured::new(&rig, &kinds, CaptureOptions::default().execution(execution));
                assert_eq!(captured.capture.num_launches(), launches, "{kinds:?}");
                if execution == CaptureExecution::RunThrough {
                    let first = rig.read(&captured.output);
                    crate::support::assert_same(&first, &captured.expected(Live::new(1.0), None));
                }
                for factor in [3.0, -1.0] {
                    captured.check(Live::new(factor), None);
                }
            }
        }
    });
}

/// A part of the breaks is launched ahead of the others, whose bodies are recorded meanwhile.
#[test]
fn a_lead_is_launched_before_the_rest() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let kinds = [Patched; 9];
        for (early_launch_divisor, launches) in [(0, 1), (1, 1), (2, 2), (8, 2), (9, 2), (10, 1)] {
            let mut options = CaptureOptions::default();
            options.graph.early_launch_divisor = early_launch_divisor;
            options.graph.share_execs = early_launch_divisor == 2;
            let mut captured = Captured::new(&rig, &kinds, options);
            assert_eq!(captured.capture.num_launches(), launches, "one in {early_launch_divisor}");
            for (factor, kernels) in [(0.5, 2), (-1.5, 2), (0.25, 3)] {
                captured.check(Live { kernels, ..Live::new(factor) }, (kernels == 3).then_some(5));
            }
        }
    });
}

/// Fewer valid rows add a scrub to each body: other nodes, another exec. Both are kept.
#[test]
fn padded_tails_are_zero_and_have_an_exec_of_their_own() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let mut captured = Captured::new(&rig, &ALL, CaptureOptions::default());
        for valid in [Some(5), None, Some(1), Some(0), Some(ROWS), Some(ROWS + 3), Some(7)] {
            captured.check(Live::new(1.5), valid.filter(|valid| *valid < ROWS));
            captured.check(Live::new(2.5), valid.map(|valid| valid.min(ROWS)));
        }
        let stats = captured.capture.patch_stats();
        assert_eq!((stats.execs, stats.rebuilt, stats.fell_back), (2, 1, 0), "{stats:?}");
    });
}

/// Bodies of another number of nodes: an exec is made once for each, up to the bound; above it the pieces are launched.
#[test]
fn bodies_of_other_shapes_get_execs_up_to_the_bound() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let mut options = CaptureOptions::default();
        options.graph.max_execs = 3;
        let mut captured = Captured::new(&rig, &ALL, options);
        let live = |kernels, factor| Live { kernels, ..Live::new(factor) };
        for round in 0..3 {
            for kernels in [2, 3, 1, 4, 5] {
                captured.check(live(kernels, 1.0 + round as f32), None);
            }
        }
        let stats = captured.capture.patch_stats();
        assert_eq!((stats.execs, stats.rebuilt, stats.fell_back), (3, 2, 6), "{stats:?}");
    });
}

/// A hundred replays of random shape, factor and rows: whatever path they take, they are right.
#[test]
fn random_replays_equal_eager() {
    let driver = driver();
    let rig = Rig::new(&driver);
    let mut options = CaptureOptions::default();
    options.graph = options.graph.reconfigure(Reconfigure::AnotherExec).max_execs(4);
    let mut captured = Captured::new(&rig, &[Patched, Alive, Patched], options);
    for values in random_values(11, 400).chunks(4) {
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| (values[at].abs() * 97.0) as usize);
        let live = Live {
            factor: values[0] * 4.0,
            kernels: 1 + a % 4,
            temporaries: b % 3,
            blocks: (d % 3) as u32,
            copies: if a % 3 == 0 { c as u32 % 8 } else { 0 },
        };
        let valid = (c % 3 > 0).then_some(d % (ROWS + 1));
        captured.check(live, valid);
    }
    let stats = captured.capture.patch_stats();
    let PatchStats { patched, reconfigured, rebuilt, fell_back, .. } = stats;
    assert!([patched, reconfigured, rebuilt, fell_back].iter().all(|&count| count > 0), "{stats:?}");
}

/// More temporaries than at capture: the composite graph is launched part by part, and later replays are patched again.
#[test]
fn more_scratch_than_at_capture_falls_back() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let mut captured = Captured::with(&rig, &ALL, CaptureOptions::default(), Live { kernels: 4, ..Live::new(1.0) })
            .expect("a capture");
        let live = |temporaries| Live { kernels: 4, temporaries, ..Live::new(2.0) };
        // The handoff is made of a temporary when the break is captured: there is room for one more.
        for temporaries in [0, 1, 2] {
            captured.check(live(temporaries), None);
        }
        assert_eq!(captured.capture.patch_stats().fell_back, 0);
        captured.check(live(3), None);
        captured.check(live(1), None);
        let stats = captured.capture.patch_stats();
        assert_eq!((stats.fell_back, stats.execs), (1, 1), "{stats:?}");
    });
}

/// Scratch is the pool's, is planned with it, and is shared with what lives at other times.
#[test]
fn scratch_is_planned() {
    let driver = driver();
    let rig = Rig::new(&driver);
    let x = rig.random(3, &[ROWS, 4096]);
    let live = Live { kernels: 3, temporaries: 2, ..Live::new(2.0) };
    let (traced, _) = active_forward(&live, || trace(&rig.pool, &rig.stream, |scope| forward(&rig, scope, &x, &ALL)))
        .expect("a trace");
    let named = (0..traced.requests().len()).filter(|&request| traced.name(request) == Some("break 1.scratch"));
    assert_eq!(named.count(), 1);
    assert_eq!(traced.scratch_peak(1), 0, "none of it is ordinary memory");
    let plan = PoolPlan::new([traced], &PlanOptions::default()).expect("a plan");
    rig.pool.take_plan(&plan).expect("a range");
    let options = CaptureOptions::default().plan(&plan.traces()[0]);
    let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
    let out = active_forward(&live, || capture.record(&rig.stream, |scope| forward(&rig, scope, &x, &ALL)))
        .expect("a recording");
    let usage = rig.pool.usage().expect("usage");
    assert_eq!((usage.divergences, usage.reserved), (0, plan.bytes().next_multiple_of(2 << 20)));
    active_forward(&live, || capture.replay(&rig.stream).map(|_| ())).expect("a replay");
    let expected = active_forward(&live, || {
        breakable_cuda_graph::eager(&rig.pool, &rig.stream, |scope| forward(&rig, scope, &x, &ALL))
    });
    crate::support::assert_same(&rig.read(&out), &rig.read(&expected.expect("eager")));
}

/// A break of no results, one that returns something of its own, and `break_here`.
#[test]
fn results_of_any_kind() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let x = rig.random(1, &[4, 4]);
        let seen = rig.zeros(&[4, 4]);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let live = |factor| Live { kernels: 1, temporaries: 0, ..Live::new(factor) };
        let rig = &rig;
        let out = active_forward(&live(1.0), || {
            capture.record(&rig.stream, |scope| {
                let h = rig.ops.scale(&x, 2.0)?;
                let note = seen.clone();
                scope.break_point(BreakOptions::new("note").patched(), [&h], move |b| {
                    rig.ops.scale_into(b.stream(), b.input(0)?, b.forward_ctx::<Live>()?.factor, &note)
                })?;
                // The result is a tensor of its own, which nobody keeps: the body does until the next one.
                let own = scope.break_point(BreakOptions::new("own").patched(), [&h], move |b| {
                    let y = breakable_cuda_graph::Tensor::allocate(&rig.context, DType::F32, b.input(0)?.shape())?;
                    rig.ops.scale_into(b.stream(), b.input(0)?, b.forward_ctx::<Live>()?.factor, &y)?;
                    Ok(y)
                })?;
                // With a memset in it the body is no list of launches, and is captured.
                let own = scope.break_point(BreakOptions::new("own, captured").patched(), [&own], move |b| {
                    let y = breakable_cuda_graph::Tensor::allocate(&rig.context, DType::F32, b.input(0)?.shape())?;
                    y.fill_bytes(b.stream(), 0)?;
                    y.copy_from(b.stream(), b.input(0)?)?;
                    Ok(y)
                })?;
                let handoff = rig.ops.empty_like(&h)?;
                let here = scope
                    .break_here(BreakOptions::new("here").patched(), handoff, [&own, &h], move |b| body(rig, b))?;
                rig.ops.add(&here, &h)
            })
        })
        .expect("a recording");
        assert_eq!(capture.num_launches(), 1);
        let values = rig.read(&x);
        for factor in [3.0_f32, -2.0, 0.5] {
            active_forward(&live(factor), || capture.replay(&rig.stream).map(|_| ())).expect("a replay");
            let expected: Vec<f32> = values.iter().map(|x| 2.0 * x * factor * factor + 2.0 * x).collect();
            crate::support::assert_close(&rig.read(&out), &expected, 1e-6);
            let seen_by_break: Vec<f32> = values.iter().map(|x| 2.0 * x * factor).collect();
            crate::support::assert_same(&rig.read(&seen), &seen_by_break);
        }
    });
}

/// What an exec has is compared by all that a launch takes: an equal body is not patched, one that differs in an address alone is.
#[test]
fn a_body_that_reads_another_tensor_is_patched() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let (a, b) = (rig.random(1, &[8]), rig.random(2, &[8]));
        let x = rig.random(3, &[8]);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let rig = &rig;
        struct Which(breakable_cuda_graph::Tensor);
        let record = |which: &Which, capture: &mut BreakableCapture<'_>| {
            active_forward(which, || capture.replay(&rig.stream).map(|_| ())).expect("a replay");
        };
        let (a, b) = (Which(a), Which(b));
        let out = active_forward(&a, || {
            capture.record(&rig.stream, |scope| {
                let h = rig.ops.scale(&x, 1.0)?;
                let y = scope.break_point(BreakOptions::new("pick").patched(), [&h], move |br| {
                    let y = match br.output(0) {
                        Some(y) => y,
                        None => br.empty(DType::F32, &[8])?,
                    };
                    rig.ops.scale_into(br.stream(), &br.forward_ctx::<Which>()?.0, 2.0, &y)?;
                    Ok(y)
                })?;
                rig.ops.add(&y, &h)
            })
        })
        .expect("a recording");
        for which in [&a, &b, &b, &a] {
            record(which, &mut capture);
            let expected: Vec<f32> = rig.read(&which.0).iter().zip(rig.read(&x)).map(|(w, x)| 2.0 * w + x).collect();
            crate::support::assert_close(&rig.read(&out), &expected, 1e-6);
        }
        let stats = capture.patch_stats();
        assert_eq!(stats.unchanged + stats.patched, 4);
        assert!(stats.unchanged >= 1 && stats.patched >= 2, "{stats:?}");
    });
}

/// Every exec is sent to the device when it is made: in the recording, or in the replay that makes it, and before it is launched.
#[test]
fn execs_are_uploaded_before_they_are_launched() {
    for_each_driver(|driver| {
        let driver = driver.intercepted();
        let rig = Rig::new(&driver);
        let watch = driver.intercept().expect("a watched driver");
        let of = [Call::cuGraphInstantiateWithParams, Call::cuGraphUpload, Call::cuGraphLaunch];
        let logged = || -> Vec<Call> { watch.take_log().into_iter().filter(|call| of.contains(call)).collect() };
        let [made, uploaded, launched] = of;
        for kinds in [[Alive; 3], ALL] {
            watch.start_log();
            let mut captured = Captured::new(&rig, &kinds, CaptureOptions::default());
            let log = logged();
            assert!(!log.is_empty());
            assert!(log.chunks(2).all(|calls| calls == [made, uploaded]), "{log:?}");
            let count = captured.capture.num_launches();
            assert_eq!(log.len(), 2 * count);
            watch.start_log();
            captured.replay(Live::new(2.0), None).expect("a replay");
            assert_eq!(logged(), vec![launched; count]);
        }
        // Other nodes: an exec more.
        let mut captured = Captured::new(&rig, &ALL, CaptureOptions::default());
        watch.start_log();
        captured.replay(Live { kernels: 3, ..Live::new(2.0) }, None).expect("a replay");
        assert_eq!(logged(), [made, uploaded, launched]);
    });
}
