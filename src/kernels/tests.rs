//! The scrub, the landing and the comparison, run on the host over memory with guards around it and compared byte for byte with a plain model.

use super::index_space::RANK;
use super::scrub::SCRUB_TENSORS;
use super::*;
use proptest::prelude::*;

/// One 16-byte piece of memory, so that vectors of them are aligned as device memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(16))]
struct Piece([u8; 16]);

/// A tensor in memory of its own: every byte counts, since what the layout leaves out are guards.
#[derive(Clone, Debug)]
struct Sample {
    pieces: Vec<Piece>,
    /// Of the first element, in bytes.
    start: usize,
    element_size: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl Sample {
    fn desc(&self) -> TensorDesc<'_> {
        let address = self.pieces.as_ptr() as u64 + self.start as u64;
        TensorDesc::new(address, self.element_size as u32, &self.shape, &self.strides)
            .expect("a layout that kernels take")
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.pieces.as_flattened_bytes()
    }

    fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Calls `visit` with the row and the byte offset of each element, in row-major order.
    fn elements(&self) -> Vec<(usize, usize)> {
        let count: usize = self.shape.iter().product();
        (0..count)
            .map(|mut index| {
                let (mut offset, mut row) = (0, 0);
                for (at, (&length, &stride)) in self.shape.iter().zip(&self.strides).enumerate().rev() {
                    row = if at == 0 { index % length } else { 0 };
                    offset += index % length * stride;
                    index /= length;
                }
                (row, self.start + offset * self.element_size)
            })
            .collect()
    }
}

trait Bytes {
    fn as_flattened_bytes(&mut self) -> &mut [u8];
}

impl Bytes for Vec<Piece> {
    fn as_flattened_bytes(&mut self) -> &mut [u8] {
        // SAFETY: a piece is 16 bytes without padding.
        unsafe { core::slice::from_raw_parts_mut(self.as_mut_ptr().cast(), self.len() * 16) }
    }
}

/// How a tensor's memory is laid out around its shape: each dimension is a slice of a longer one, and the dimensions lie in some order.
#[derive(Clone, Debug)]
struct Arrangement {
    /// Elements before and after each dimension's slice.
    around: Vec<(usize, usize)>,
    order: Vec<usize>,
    /// Elements between the aligned start of the memory and the whole tensor.
    shift: usize,
}

impl Arrangement {
    fn place(&self, shape: &[usize], element_size: usize, seed: u8) -> Sample {
        let mut strides = vec![0; shape.len()];
        let mut stride = 1;
        for &dimension in self.order.iter().rev().filter(|&&dimension| dimension < shape.len()) {
            strides[dimension] = stride;
            let (before, after) = self.around[dimension];
            stride *= before + shape[dimension] + after;
        }
        let first: usize = strides.iter().zip(&self.around).map(|(stride, (before, _))| stride * before).sum();
        let guard = 48;
        let start = guard + (self.shift + first) * element_size;
        let bytes = (2 * guard + (self.shift + stride) * element_size).next_multiple_of(16);
        let mut sample =
            Sample { pieces: vec![Piece([0; 16]); bytes / 16], start, element_size, shape: shape.to_vec(), strides };
        // No byte is zero, and neighbours differ.
        sample
            .bytes()
            .iter_mut()
            .enumerate()
            .for_each(|(at, byte)| *byte = (at as u8).wrapping_mul(37).wrapping_add(seed) | 1);
        sample
    }
}

fn arrangement() -> impl Strategy<Value = Arrangement> {
    let gap = prop_oneof![4 => Just((0, 0)), 1 => (0..3_usize, 0..3_usize), 1 => Just((0, 4)), 1 => Just((4, 0))];
    let order = prop_oneof![
        2 => Just((0..RANK).collect::<Vec<_>>()),
        1 => Just((0..RANK).collect::<Vec<_>>()).prop_shuffle()
    ];
    let shift = prop_oneof![2 => Just(0), 1 => 0..17_usize];
    (proptest::collection::vec(gap, RANK), order, shift).prop_map(|(around, order, shift)| Arrangement {
        around,
        order,
        shift,
    })
}

/// Shapes of at most 4096 elements; most have few dimensions.
fn shape() -> impl Strategy<Value = Vec<usize>> {
    let length = prop_oneof![6 => 1..6_usize, 3 => Just(8), 1 => Just(16), 1 => Just(0)];
    prop_oneof![
        6 => proptest::collection::vec(length.clone(), 0..4),
        2 => (1..300_usize, 1..40_usize).prop_map(|(rows, columns)| vec![rows, columns]),
        1 => proptest::collection::vec(1..3_usize, 4..=RANK),
    ]
    .prop_filter("small", |shape| shape.iter().product::<usize>() <= 12_000)
}

fn element_size() -> impl Strategy<Value = usize> {
    prop_oneof![Just(1), Just(2), Just(4), Just(8), Just(16)]
}

/// The valid rows as a launch takes them: by value, or at an address.
#[derive(Clone, Copy, Debug)]
enum Way {
    Value,
    Address,
}

fn way() -> impl Strategy<Value = Way> {
    prop_oneof![Just(Way::Value), Just(Way::Address)]
}

impl Way {
    fn rows(self, rows: usize, scalar: &mut i32) -> ValidRows {
        *scalar = rows as i32;
        match self {
            Way::Value => ValidRows::Count(rows),
            Way::Address => ValidRows::At(scalar as *const i32 as u64),
        }
    }
}

fn run<P>(name: &std::ffi::CStr, parameters: &P, config: LaunchConfig) {
    let name = name.to_str().expect("an ASCII name");
    let (_, kernel) = HOST.iter().find(|(listed, _)| *listed == name).expect("a listed kernel");
    let arguments = [core::ptr::from_ref(parameters).cast_mut().cast()];
    // SAFETY: the kernel takes this one structure, which describes live memory of the test.
    unsafe { kernel(&config, arguments.as_ptr()) };
}

fn scrub(valid: ValidRows, samples: &[Sample]) {
    let mut batch = ScrubBatch::new(valid);
    for sample in samples {
        assert!(batch.add(&sample.desc()), "the batch has room");
    }
    if let Some(launch) = batch.launch() {
        run(SCRUB, launch.parameters, launch.config);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_scrub_zeroes_the_tails_and_nothing_else(
        tensors in proptest::collection::vec((shape(), element_size(), arrangement()), 0..=4),
        rows in 0..12_usize,
        way in way(),
    ) {
        let samples: Vec<Sample> =
            tensors.iter().enumerate().map(|(at, (shape, size, arrangement))| arrangement.place(shape, *size, at as u8)).collect();
        let mut expected = samples.clone();
        for sample in &mut expected {
            for (row, offset) in sample.elements() {
                if row >= rows {
                    let size = sample.element_size;
                    sample.bytes()[offset..offset + size].fill(0);
                }
            }
        }
        let mut scalar = 0;
        scrub(way.rows(rows, &mut scalar), &samples);
        for (got, expected) in samples.iter().zip(&expected) {
            prop_assert!(got.pieces == expected.pieces, "{:?} {:?}", got.shape, got.strides);
        }
    }

    #[test]
    fn a_comparison_tells_a_difference_in_any_element_and_in_nothing_else(
        shape in shape(),
        size in element_size(),
        left in arrangement(),
        right in arrangement(),
        differing in proptest::option::of(0..4096_usize),
    ) {
        // The bytes around the elements differ in any case.
        let (left, mut right) = (left.place(&shape, size, 1), right.place(&shape, size, 2));
        let (mut copied, places) = (left.clone(), left.elements());
        for ((_, from), (_, to)) in places.iter().zip(right.elements()) {
            let element = copied.bytes()[*from..*from + size].to_vec();
            right.bytes()[to..to + size].copy_from_slice(&element);
        }
        let differing = differing.filter(|_| !places.is_empty()).map(|at| right.elements()[at % places.len()].1);
        if let Some(at) = differing {
            right.bytes()[at + size - 1] ^= 2;
        }
        let mut flag = [0_u32, 7];
        let launch = comparison(&left.desc(), &right.desc(), flag.as_mut_ptr() as u64);
        prop_assert_eq!(launch.is_none(), places.is_empty());
        if let Some(launch) = launch {
            run(COMPARE, &launch.parameters, launch.config);
        }
        prop_assert_eq!(flag, [u32::from(differing.is_some()), 7]);
    }

    #[test]
    fn a_landing_copies_the_valid_rows_and_zeroes_those_after(
        shape in shape(),
        size in element_size(),
        to in arrangement(),
        from in arrangement(),
        lacking in 0..4_usize,
        valid in 0..12_usize,
        way in way(),
    ) {
        let mut result_shape = shape.clone();
        if let Some(rows) = result_shape.first_mut() {
            *rows = rows.saturating_sub(lacking);
        }
        let handoff = to.place(&shape, size, 1);
        let mut result = from.place(&result_shape, size, 101);
        let untouched = result.clone();
        let mut expected = handoff.clone();
        let sources = result.elements();
        for (at, (row, offset)) in handoff.elements().into_iter().enumerate() {
            let target = &mut expected.bytes()[offset..offset + size];
            if row >= valid {
                target.fill(0);
            } else if row < result.rows() {
                target.copy_from_slice(&result.bytes()[sources[at].1..][..size]);
            }
        }
        let mut scalar = 0;
        if let Some(launch) = landing(&result.desc(), &handoff.desc(), way.rows(valid, &mut scalar)) {
            run(LAND, &launch.parameters, launch.config);
        }
        prop_assert!(handoff.pieces == expected.pieces, "the handoff");
        prop_assert!(result.pieces == untouched.pieces, "the result is only read");
    }
}

const PLAIN: fn(usize) -> Arrangement =
    |shift| Arrangement { around: vec![(0, 0); RANK], order: (0..RANK).collect(), shift };

fn unit_bytes(launch: &LandLaunch) -> u32 {
    launch.parameters.space.unit_bytes
}

#[test]
fn sixteen_bytes_move_at_once_where_layout_and_alignment_allow() {
    let unit = |shape: &[usize], size: usize, to: &Arrangement, from: &Arrangement| {
        let (to, from) = (to.place(shape, size, 1), from.place(shape, size, 2));
        unit_bytes(&landing(&from.desc(), &to.desc(), usize::MAX).expect("something to do"))
    };
    let aligned = PLAIN(0);
    assert_eq!(unit(&[5, 8], 2, &aligned, &aligned), 16);
    assert_eq!(unit(&[5, 4, 4], 1, &aligned, &aligned), 16, "two dimensions make one wide row");
    assert_eq!(unit(&[5, 6], 2, &aligned, &aligned), 4, "a row of 12 bytes");
    assert_eq!(unit(&[4, 1], 4, &aligned, &aligned), 4, "a unit never crosses a row's end");
    assert_eq!(unit(&[5, 8], 2, &PLAIN(4), &aligned), 8, "the handoff begins at 8");
    assert_eq!(unit(&[5, 8], 2, &aligned, &PLAIN(1)), 2, "the result begins at 2");
    let gaps = Arrangement { around: vec![(0, 0), (0, 8), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)], ..PLAIN(0) };
    assert_eq!(unit(&[5, 8], 2, &gaps, &aligned), 16, "gaps of 16 bytes between rows");
    let odd = Arrangement { around: vec![(0, 0), (0, 1), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)], ..PLAIN(0) };
    assert_eq!(unit(&[5, 8], 2, &odd, &aligned), 2, "gaps of 2 bytes between rows");
    assert_eq!(unit(&[1, 8], 2, &odd, &aligned), 16, "one row has no gap");
}

#[test]
fn tensors_without_gaps_have_no_inner_dimension() {
    let sample = PLAIN(0).place(&[3, 1, 2, 4], 4, 1);
    let launch = landing(&sample.desc(), &sample.desc(), 2).expect("something to do");
    assert_eq!((launch.parameters.space.inner, launch.parameters.space.row_units), (0, 2));
}

#[test]
fn a_launch_has_no_more_threads_than_it_needs_and_no_less_than_one_block() {
    let sample = PLAIN(0).place(&[100, 64], 16, 1);
    let grid = |valid: usize| landing(&sample.desc(), &sample.desc(), valid).expect("something to do").config.grid;
    assert_eq!(grid(100), [25, 1, 1]);
    let mut batch = ScrubBatch::new(99);
    assert!(batch.add(&sample.desc()));
    assert_eq!(batch.launch().expect("a tail").config.grid, [1, 1, 1]);
}

#[test]
fn large_tails_are_scrubbed_by_threads_that_loop() {
    // More units than the largest grid has threads.
    let sample = PLAIN(0).place(&[3, 600_000], 1, 1);
    let mut samples = [sample];
    samples[0].strides = vec![600_000, 1];
    samples[0].start += 1;
    samples[0].shape = vec![2, 599_999];
    scrub(ValidRows::Count(0), &samples);
    let (start, expected) = (samples[0].start, 600_000);
    let bytes = samples[0].bytes();
    assert!(bytes[start..start + 599_999].iter().all(|&byte| byte == 0));
    assert_ne!(bytes[start + 599_999], 0, "the gap between the rows");
    assert!(bytes[start + expected..start + expected + 599_999].iter().all(|&byte| byte == 0));
    assert_ne!(bytes[start + expected + 599_999], 0, "the end");
}

#[test]
fn a_count_below_zero_at_an_address_is_none() {
    let mut samples = [PLAIN(0).place(&[2, 8], 4, 1)];
    let count = -1_i32;
    scrub(ValidRows::At(&raw const count as u64), &samples);
    let start = samples[0].start;
    assert!(samples[0].bytes()[start..start + 64].iter().all(|&byte| byte == 0));
}

#[test]
fn a_broadcast_is_scrubbed() {
    let mut samples = [PLAIN(0).place(&[4, 8], 4, 1)];
    samples[0].strides = vec![8, 0];
    scrub(ValidRows::Count(3), &samples);
    let start = samples[0].start;
    let bytes = samples[0].bytes();
    assert!(bytes[start + 96..start + 100].iter().all(|&byte| byte == 0));
    assert!(bytes[start..start + 96].iter().chain(&bytes[start + 100..]).all(|&byte| byte != 0));
}

#[test]
fn a_full_batch_takes_no_more_and_tensors_without_a_tail_take_no_room() {
    let sample = PLAIN(0).place(&[3, 2], 4, 1);
    let short = PLAIN(0).place(&[1, 2], 4, 1);
    let mut batch = ScrubBatch::new(1);
    for _ in 0..SCRUB_TENSORS {
        assert!(batch.add(&sample.desc()));
        assert!(batch.add(&short.desc()));
    }
    assert!(!batch.add(&sample.desc()));
    assert!(batch.add(&short.desc()), "there is nothing to add");
    assert_eq!(batch.launch().expect("tails").config.grid[1], SCRUB_TENSORS as u32);
    assert!(ScrubBatch::new(1).launch().is_none());
}

#[test]
fn layouts_that_kernels_can_not_take_are_refused() {
    let refused =
        |address, size, shape: &[usize], strides: &[usize]| TensorDesc::new(address, size, shape, strides).is_none();
    assert!(!refused(64, 4, &[2; 8], &[128, 64, 32, 16, 8, 4, 2, 1]));
    assert!(refused(64, 4, &[2; 9], &[256, 128, 64, 32, 16, 8, 4, 2, 1]), "nine dimensions");
    assert!(refused(64, 3, &[2], &[1]), "elements of 3 bytes");
    assert!(refused(64, 32, &[2], &[1]), "elements of 32 bytes");
    assert!(refused(66, 4, &[2], &[1]), "an address inside an element");
    assert!(refused(64, 4, &[2, 2], &[1]), "a stride too few");
    assert!(refused(u64::MAX - 7, 4, &[4], &[1]), "past the end of the address space");
    assert!(refused(64, 4, &[usize::MAX, 2], &[0, 0]), "more elements than can be counted");
}

#[test]
fn structures_have_the_sizes_of_their_c_twins() {
    unsafe extern "C" {
        #[link_name = concat!(env!("BREAKABLE_CUDA_GRAPH_HOST_SYMBOLS"), "scrub_parameters_size")]
        static SCRUB_SIZE: usize;
        #[link_name = concat!(env!("BREAKABLE_CUDA_GRAPH_HOST_SYMBOLS"), "land_parameters_size")]
        static LAND_SIZE: usize;
        #[link_name = concat!(env!("BREAKABLE_CUDA_GRAPH_HOST_SYMBOLS"), "compare_parameters_size")]
        static COMPARE_SIZE: usize;
    }
    // SAFETY: constants of csrc/host.c.
    let (scrub, land, compare) = unsafe { (SCRUB_SIZE, LAND_SIZE, COMPARE_SIZE) };
    assert_eq!(scrub, size_of::<super::scrub::ScrubParameters>());
    assert_eq!(land, size_of::<super::landing::LandParameters>());
    assert_eq!(compare, size_of::<super::comparison::CompareParameters>());
    let ptx = PTX.to_str().expect("text");
    for parameter in
        [format!("scrub_param_0[{scrub}]"), format!("land_param_0[{land}]"), format!("compare_param_0[{compare}]")]
    {
        assert!(ptx.contains(&format!("bcg_{parameter}")), "{parameter}");
    }
}
