//! What consumers of both forms read.

use super::*;
use crate::tensor::DType;

/// All that a consumer reads.
#[derive(PartialEq, Debug)]
struct Seen {
    data: usize,
    device: DlDevice,
    data_type: DlDataType,
    shape: Vec<i64>,
    strides: Vec<i64>,
    byte_offset: u64,
}

fn read(tensor: &DlTensor) -> Seen {
    let list = |numbers: *mut i64| {
        // SAFETY: the description has `rank` of each.
        unsafe { core::slice::from_raw_parts(numbers, tensor.rank as usize) }.to_vec()
    };
    Seen {
        data: tensor.data.addr(),
        device: tensor.device,
        data_type: tensor.data_type,
        shape: list(tensor.shape),
        strides: list(tensor.strides),
        byte_offset: tensor.byte_offset,
    }
}

/// What both forms tell, which must be the same, after a way through a raw pointer.
fn both(view: impl Fn() -> (DlpackView, DlpackView<ManagedTensorVersioned>)) -> Seen {
    let (plain, versioned) = view();
    let (plain, versioned) = (plain.into_raw(), versioned.into_raw());
    // SAFETY: just given up, and alive.
    let (p, v) = unsafe { (plain.as_ref(), versioned.as_ref()) };
    assert_eq!((v.major, v.minor, v.flags), (1, 1, 0));
    assert!(p.owner.is_null() && v.owner.is_null());
    let seen = read(&p.tensor);
    assert_eq!(seen, read(&v.tensor));
    let delete = (p.deleter.expect("a deleter"), v.deleter.expect("a deleter"));
    // SAFETY: their own deleters, called once.
    unsafe {
        delete.0(plain.as_ptr());
        delete.1(versioned.as_ptr());
    }
    seen
}

fn of(tensor: &Tensor) -> Seen {
    both(|| (DlpackView::of(tensor), DlpackView::of(tensor)))
}

#[test]
fn a_view_has_the_tensors_place_shape_and_strides() {
    let whole = Tensor::host(&[0_i64; 60], &[3, 4, 5]).expect("a tensor");
    let view = whole.narrow(1, 1, 2).and_then(|part| part.transpose(0, 2)).expect("a view");
    let seen = of(&view);
    assert_eq!(seen.data as u64, whole.address() + 40);
    assert_eq!((seen.shape, seen.strides), (vec![5, 2, 3], vec![1, 5, 20]));
    assert_eq!((seen.device, seen.byte_offset), (DlDevice { kind: DlDevice::CPU, id: 0 }, 0));
    assert_eq!(seen.data_type, DlDataType { code: 0, bits: 64, lanes: 1 });
}

#[test]
fn element_types_have_dlpacks_codes() {
    let code = |dtype| {
        let DlDataType { code, bits, lanes } = DlDataType::from(dtype);
        assert_eq!(lanes, 1);
        (code, bits)
    };
    let expected = [
        (DType::I8, (0, 8)),
        (DType::I16, (0, 16)),
        (DType::I32, (0, 32)),
        (DType::I64, (0, 64)),
        (DType::U8, (1, 8)),
        (DType::U16, (1, 16)),
        (DType::U32, (1, 32)),
        (DType::U64, (1, 64)),
        (DType::F16, (2, 16)),
        (DType::F32, (2, 32)),
        (DType::F64, (2, 64)),
        (DType::BF16, (4, 16)),
        (DType::Bool, (6, 8)),
        (DType::F8E4M3, (10, 8)),
        (DType::F8E5M2, (12, 8)),
    ];
    for (dtype, known) in expected {
        assert_eq!(code(dtype), known, "{dtype}");
    }
}

#[test]
fn a_scalar_has_no_dimension() {
    let scalar = Tensor::host(&[1.0_f32], &[]).expect("a tensor");
    let seen = of(&scalar);
    assert_eq!((seen.data as u64, seen.shape, seen.strides), (scalar.address(), vec![], vec![]));
}

#[test]
fn a_tensor_without_rows_has_a_null_address() {
    let none = Tensor::host::<u8>(&[], &[0, 7]).expect("a tensor");
    let seen = of(&none);
    assert_eq!((seen.data, seen.shape, seen.strides), (0, vec![0, 7], vec![7, 1]));
}

#[test]
fn foreign_memory_is_described_as_given() {
    let description = Description {
        address: 0x7f00_0000_0000,
        byte_offset: 24,
        device: DlDevice { kind: DlDevice::CUDA, id: 3 },
        data_type: DlDataType { code: 2, bits: 16, lanes: 4 },
        shape: &[2, 9],
        strides: &[-9, 1],
    };
    let seen = both(|| (DlpackView::new(&description), DlpackView::new(&description)));
    let expected = Seen {
        data: 0x7f00_0000_0000,
        device: description.device,
        data_type: description.data_type,
        shape: vec![2, 9],
        strides: vec![-9, 1],
        byte_offset: 24,
    };
    assert_eq!(seen, expected);
}

#[test]
fn a_view_taken_back_is_the_same() {
    let tensor = Tensor::host(&[1_u16, 2], &[2]).expect("a tensor");
    let raw = DlpackView::<ManagedTensorVersioned>::of(&tensor).into_raw();
    // SAFETY: given up in the line before.
    let view = unsafe { DlpackView::from_raw(raw) };
    assert_eq!(view.tensor().data.addr() as u64, tensor.address());
}
