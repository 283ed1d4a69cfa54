//! What the padded tail of a static input holds.

use super::dtype::{DType, Element, bytes_of};

/// What a static input's rows after the valid ones hold. There is no default: a pad of zero is a live slot to one kernel and a division by zero to
/// another.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum TailRule {
    /// Zero bytes.
    Zero,
    /// This value in every element: a length of one, say, or -1 where kernels skip it.
    Value(Scalar),
    /// This index in every element: a slot that no request owns, or one that kernels skip. For integer inputs.
    DummySlot(i64),
    /// Whatever an earlier batch left there.
    LeftAlone,
}

/// A value of some element type.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scalar {
    dtype: DType,
    bytes: [u8; 8],
}

impl<T: Element> From<T> for Scalar {
    fn from(value: T) -> Scalar {
        let mut bytes = [0; 8];
        bytes[..size_of::<T>()].copy_from_slice(bytes_of(&[value]));
        Scalar { dtype: T::DTYPE, bytes }
    }
}

impl<T: Element> From<T> for TailRule {
    /// This value in every element.
    fn from(value: T) -> TailRule {
        TailRule::Value(value.into())
    }
}

impl TailRule {
    /// The bytes of one element of the tail. `None`: it is left alone. The error is why the rule doesn't fit the element type.
    pub(crate) fn pattern(self, dtype: DType) -> Result<Option<TailPattern>, &'static str> {
        let size = dtype.size();
        match self {
            TailRule::LeftAlone => Ok(None),
            TailRule::Zero => Ok(Some(TailPattern { bytes: [0; 8], size })),
            TailRule::Value(value) if value.dtype == dtype => Ok(Some(TailPattern { bytes: value.bytes, size })),
            TailRule::Value(_) => Err("the value is of another element type"),
            TailRule::DummySlot(slot) => {
                let bytes = slot.to_le_bytes();
                let fits = match dtype {
                    DType::I8 => i8::try_from(slot).is_ok(),
                    DType::I16 => i16::try_from(slot).is_ok(),
                    DType::I32 => i32::try_from(slot).is_ok(),
                    DType::I64 => true,
                    DType::U8 => u8::try_from(slot).is_ok(),
                    DType::U16 => u16::try_from(slot).is_ok(),
                    DType::U32 => u32::try_from(slot).is_ok(),
                    DType::U64 => u64::try_from(slot).is_ok(),
                    _ => return Err("a slot is an index, and the input is not of an integer type"),
                };
                if fits { Ok(Some(TailPattern { bytes, size })) } else { Err("the slot is out of the type's range") }
            }
        }
    }
}

/// One element's bytes, little endian as on every machine that CUDA runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailPattern {
    bytes: [u8; 8],
    size: usize,
}

impl TailPattern {
    /// Writes it over and over.
    pub(crate) fn repeat(&self, into: &mut [u8]) {
        let element = &self.bytes[..self.size];
        if element.iter().all(|byte| *byte == element[0]) {
            into.fill(element[0]);
            return;
        }
        into.chunks_exact_mut(self.size).for_each(|place| place.copy_from_slice(element));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(rule: TailRule, dtype: DType) -> Option<[u8; 8]> {
        let mut bytes = [7; 8];
        rule.pattern(dtype).expect("it fits")?.repeat(&mut bytes);
        Some(bytes)
    }

    #[test]
    fn a_tail_repeats_its_element() {
        assert_eq!(tail(TailRule::Zero, DType::F64), Some([0; 8]));
        assert_eq!(tail(TailRule::from(0x0102_i16), DType::I16), Some([2, 1, 2, 1, 2, 1, 2, 1]));
        assert_eq!(tail(TailRule::DummySlot(-1), DType::I32), Some([255; 8]));
        assert_eq!(tail(TailRule::DummySlot(3), DType::U64), Some([3, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(tail(TailRule::LeftAlone, DType::F32), None);
    }

    #[test]
    fn a_rule_that_does_not_fit_the_element_type_is_refused() {
        for (rule, dtype) in [
            (TailRule::from(1_i32), DType::I64),
            (TailRule::DummySlot(0), DType::F32),
            (TailRule::DummySlot(-1), DType::U32),
            (TailRule::DummySlot(300), DType::I8),
        ] {
            assert!(rule.pattern(dtype).is_err(), "{rule:?} {dtype}");
        }
    }
}
