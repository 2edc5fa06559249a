//! The binary: arguments in, exit code out.

fn main() {
    std::process::exit(zero3::cli::main(std::env::args_os()).code());
}
