//! A child of a fork can't use the driver that its parent loaded, and says so.

use breakable_cuda_graph::driver::Device;
use breakable_cuda_graph::{CapturePool, Error, Misuse};

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

#[test]
fn a_driver_that_was_loaded_before_a_fork_is_refused_in_the_child() {
    let driver = crate::support::driver();
    let device = Device::get(&driver, 0).expect("a device");
    let context = device.primary_context().expect("a context");
    // SAFETY: the child makes no more than the two calls below, which are refused before they touch a lock or the driver, and ends.
    let child = unsafe { fork() };
    if child == 0 {
        let refused = matches!(device.primary_context(), Err(Error::Misuse(Misuse::ForkedAfterInit)))
            && matches!(CapturePool::new(&context), Err(Error::Misuse(Misuse::ForkedAfterInit)));
        // SAFETY: ends the child without running its destructors.
        unsafe { _exit(i32::from(!refused)) };
    }
    let mut status = -1;
    // SAFETY: the child that was just made, and a valid place.
    assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "both calls were refused");
    CapturePool::new(&context).expect("the parent goes on");
}
