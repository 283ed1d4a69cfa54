//! A place in a pool for what a layer above keeps with it.

use crate::error::{Error, Result};
use std::any::Any;
use std::sync::OnceLock;

/// A value of one type that a layer above the pool keeps with it, made at its first use. Reading it takes no lock. It must not hold the pool.
#[derive(Default)]
pub(crate) struct ExtensionSlot {
    value: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl ExtensionSlot {
    /// The value, made by `make` where there is none yet.
    ///
    /// # Errors
    /// [`Error::Internal`] where the slot has a value of another type.
    pub(crate) fn get_or_init<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Result<&T> {
        let value = self.value.get_or_init(|| Box::new(make()));
        value.downcast_ref().ok_or(Error::Internal("the pool's extension slot has a value of another type"))
    }
}

#[cfg(test)]
mod tests {
    use super::ExtensionSlot;

    #[test]
    fn a_slot_has_one_value_of_one_type() {
        let slot = ExtensionSlot::default();
        assert_eq!(slot.get_or_init(|| 1_u32).ok(), Some(&1));
        assert_eq!(slot.get_or_init(|| 2_u32).ok(), Some(&1), "made once");
        assert!(slot.get_or_init(|| 2_u64).is_err());
    }
}
