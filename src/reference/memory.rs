//! Device memory: host memory with the device's rules. It reads as NaN (all bits set) before it is written and after it is freed, and each use is
//! checked against what is allocated at the time the work runs.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, VecDeque};

/// What fresh and freed memory is filled with: NaN in every floating-point format, -1 in signed integers.
pub(super) const POISON: u8 = 0xff;

/// What the driver's allocations are aligned to.
const ALIGNMENT: usize = 512;

/// Freed memory is kept up to this many bytes, so that a late use finds poison and is reported.
const QUARANTINE: usize = 64 << 20;

/// Bytes after what was asked for, which nobody may write: a kernel that does is reported, where a device may or may not fault.
const GUARD: usize = 4096;

/// Host memory behind device addresses.
struct Backing {
    /// As asked for, rounded up to the alignment.
    bytes: usize,
    /// From where on it is guard.
    guard: usize,
    layout: Layout,
}

/// A range that work may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Region {
    pub(super) bytes: usize,
    pub(super) kind: Kind,
}

/// Who gave a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// `cuMemAlloc`, in this context.
    Device(usize),
    /// A memory pool, in this context.
    Pool(usize),
    /// An allocation node of a graph.
    GraphNode(usize),
    /// Mapped at a reserved address.
    Mapped(usize),
    /// `cuMemHostAlloc`.
    Pinned(usize),
}

impl Kind {
    pub(super) fn context(self) -> usize {
        let (Kind::Device(context)
        | Kind::Pool(context)
        | Kind::GraphNode(context)
        | Kind::Mapped(context)
        | Kind::Pinned(context)) = self;
        context
    }
}

/// All memory of a reference driver.
#[derive(Default)]
pub(super) struct Memory {
    backings: BTreeMap<u64, Backing>,
    regions: BTreeMap<u64, Region>,
    quarantine: VecDeque<u64>,
    quarantined: usize,
}

impl Memory {
    /// New addresses with poison behind them, not yet usable.
    pub(super) fn back(&mut self, bytes: usize) -> Option<u64> {
        let rounded = bytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let layout = Layout::from_size_align(rounded.checked_add(GUARD)?, ALIGNMENT).ok()?;
        // SAFETY: the layout has a size.
        let pointer = unsafe { alloc(layout) };
        if pointer.is_null() {
            return None;
        }
        // SAFETY: the guard lies in what was just allocated.
        unsafe { pointer.add(bytes).write_bytes(POISON, layout.size() - bytes) };
        let address = pointer as u64;
        self.backings.insert(address, Backing { bytes: rounded, guard: bytes, layout });
        Some(address)
    }

    /// Where the memory begins that holds the address, and how much was asked for, if something was written after that since the last look.
    pub(super) fn overrun(&mut self, address: u64) -> Option<(u64, usize)> {
        let (&start, backing) = self.backings.range(..=address).next_back()?;
        if address >= start + backing.bytes as u64 {
            return None;
        }
        // SAFETY: the guard is part of what was allocated, initialised when it was, and used by nothing while the driver's state is borrowed.
        let guard = unsafe {
            let first = (start as *mut u8).add(backing.guard);
            core::slice::from_raw_parts_mut(first, backing.layout.size() - backing.guard)
        };
        if guard.iter().all(|byte| *byte == POISON) {
            return None;
        }
        guard.fill(POISON);
        Some((start, backing.guard))
    }

    /// Makes a range usable, filled with poison.
    pub(super) fn open(&mut self, address: u64, region: Region) {
        self.fill(address, region.bytes);
        self.regions.insert(address, region);
    }

    /// Makes a range unusable, filled with poison.
    pub(super) fn close(&mut self, address: u64) -> Option<Region> {
        let region = self.regions.remove(&address)?;
        self.fill(address, region.bytes);
        Some(region)
    }

    fn fill(&mut self, address: u64, bytes: usize) {
        debug_assert!(self.is_backed(address, bytes));
        if self.is_backed(address, bytes) {
            // SAFETY: the range lies in one backing, which this owns.
            unsafe { (address as *mut u8).write_bytes(POISON, bytes) };
        }
    }

    /// Gives addresses up. They stay backed for a while.
    pub(super) fn unback(&mut self, address: u64) {
        let Some(backing) = self.backings.get(&address) else { return };
        self.quarantined += backing.bytes;
        self.quarantine.push_back(address);
        while self.quarantined > QUARANTINE {
            let Some(oldest) = self.quarantine.pop_front() else { return };
            if let Some(backing) = self.backings.remove(&oldest) {
                self.quarantined -= backing.bytes;
                // SAFETY: allocated with this layout, and no region of it is open.
                unsafe { dealloc(oldest as *mut u8, backing.layout) };
            }
        }
    }

    fn is_backed(&self, address: u64, bytes: usize) -> bool {
        let found = self.backings.range(..=address).next_back();
        found.is_some_and(|(start, backing)| address + bytes as u64 <= start + backing.bytes as u64)
    }

    /// Whether the address is one that this memory ever gave and still backs.
    pub(super) fn is_known(&self, address: u64) -> bool {
        self.is_backed(address, 1)
    }

    /// The open region that holds the address.
    pub(super) fn region(&self, address: u64) -> Option<(u64, Region)> {
        let (&start, &region) = self.regions.range(..=address).next_back()?;
        (address < start + region.bytes.max(1) as u64).then_some((start, region))
    }

    /// Whether a range lies wholly in open regions (neighbouring ones count as one).
    pub(super) fn is_open(&self, address: u64, bytes: usize) -> bool {
        let (mut at, end) = (address, address + bytes as u64);
        while at < end {
            match self.region(at) {
                Some((start, region)) => at = start + region.bytes as u64,
                None => return false,
            }
        }
        true
    }

    /// Open regions of one kind.
    pub(super) fn open_regions(&self, select: impl Fn(Kind) -> bool) -> (usize, usize) {
        let chosen = self.regions.values().filter(|region| select(region.kind));
        chosen.fold((0, 0), |(count, bytes), region| (count + 1, bytes + region.bytes))
    }

    /// Closes all regions of a context. Their addresses stay backed.
    pub(super) fn close_context(&mut self, context: usize) {
        let gone: Vec<u64> = self
            .regions
            .iter()
            .filter(|(_, region)| region.kind.context() == context)
            .map(|(address, _)| *address)
            .collect();
        for address in gone {
            self.close(address);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (address, backing) in std::mem::take(&mut self.backings) {
            // SAFETY: allocated with this layout, and nobody can use it any more: the driver is gone.
            unsafe { dealloc(address as *mut u8, backing.layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, Memory, POISON, Region};

    #[test]
    fn memory_is_poisoned_and_checked() {
        let mut memory = Memory::default();
        let address = memory.back(1000).expect("memory");
        assert!(memory.is_known(address) && !memory.is_open(address, 1));
        memory.open(address, Region { bytes: 1000, kind: Kind::Device(1) });
        assert!(memory.is_open(address, 1000) && !memory.is_open(address, 1001) && !memory.is_open(address + 999, 2));
        // SAFETY: the range is backed.
        let byte = |at: u64| unsafe { *((address + at) as *const u8) };
        assert_eq!((byte(0), byte(999)), (POISON, POISON));
        // SAFETY: likewise.
        unsafe { *(address as *mut u8) = 1 };
        memory.close(address);
        assert_eq!(byte(0), POISON, "freed memory reads as poison");
        assert!(!memory.is_open(address, 1) && memory.is_known(address));
        memory.unback(address);
        assert!(memory.is_known(address), "kept in quarantine");
    }

    #[test]
    fn neighbouring_regions_count_as_one() {
        let mut memory = Memory::default();
        let address = memory.back(4096).expect("memory");
        memory.open(address, Region { bytes: 1024, kind: Kind::Mapped(1) });
        memory.open(address + 1024, Region { bytes: 1024, kind: Kind::Mapped(1) });
        assert!(memory.is_open(address + 512, 1024) && !memory.is_open(address + 512, 2048));
    }
}
