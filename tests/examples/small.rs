//! The small examples, whole: they check their own results.

#[path = "../../examples/hello.rs"]
mod hello;
#[path = "../../examples/own_kernels/main.rs"]
#[allow(dead_code)]
mod own_kernels;

#[test]
fn hello_runs() {
    hello::main().expect("it runs");
}

/// On the driver under test: as PTX on libcuda, as functions of the host on the reference driver.
#[test]
fn kernels_of_ones_own_agree_with_plain_rust() {
    let driver = if cfg!(feature = "driver-tests") {
        crate::support::driver()
    } else {
        own_kernels::kernels::reference().expect("the kernels for the host")
    };
    own_kernels::run(&driver).expect("it runs");
}

/// On a driver that doesn't have them the first kernel that is asked for says what to do.
#[cfg(not(feature = "driver-tests"))]
#[test]
fn without_their_host_functions_the_kernels_name_the_cure() {
    let error = own_kernels::run(&crate::support::driver()).expect_err("it has other kernels").to_string();
    assert!(error.contains("`own_embed`") && error.contains("Options::kernel"), "{error}");
}
