//! The binary: arguments in, exit code out.

#[global_allocator]
static ALLOCATOR: zero3::telemetry::allocations::Counting = zero3::telemetry::allocations::Counting;

fn main() {
    std::process::exit(zero3::cli::main(std::env::args_os()).code());
}
