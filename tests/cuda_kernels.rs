//! The CUDA kernels on a machine without a GPU: they compile for every architecture without spills, with nvcc
//! and as a node compiles them; they give the right numbers on the host shim (tests/cuda/shim), in several
//! orders of threads and under AddressSanitizer; and these tests notice when something is wrong with them.
//!
//! nvcc comes from scripts/cuda_compiler.sh, which `make setup-test` runs. Where it is missing the tests
//! fail.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use zero3::backend::cuda::kernels;

/// A100, H100 and H200, B200.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];

/// What the numbers need: no contraction that the kernels do not ask for, and access to memory by words of
/// other types.
const HOST_FLAGS: [&str; 6] =
    ["-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Wno-unknown-pragmas"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn output_of(command: &mut Command) -> (Output, String) {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}. `make setup-test` installs what the tests need"));
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output, text)
}

/// What the command printed, on both streams, if it succeeded.
fn expect_success(command: &mut Command) -> String {
    let (output, text) = output_of(command);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}

/// A directory of this test program's own.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda_kernels").join(name);
    std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    dir
}

/// Where nvcc is.
fn toolkit() -> &'static Path {
    static TOOLKIT: OnceLock<PathBuf> = OnceLock::new();
    TOOLKIT.get_or_init(|| {
        let mut command = Command::new(root().join("scripts/cuda_compiler.sh"));
        let (output, text) = output_of(command.arg("where"));
        assert!(
            output.status.success(),
            "there is no nvcc: run scripts/cuda_compiler.sh (make setup-test does)\n{text}"
        );
        text.trim().into()
    })
}

fn nvcc(out: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(toolkit().join("bin/nvcc"));
    command.args(["-x", "cu", "-O3"]).args(kernels::FLAGS).args(args).arg("-o").arg(out);
    command.arg(root().join("src/backend/cuda/kernels/all.cuh"));
    command
}

/// Compiles a program of tests/cuda for the host, whose sources lie under `root`.
fn build(root: &Path, out: &Path, flags: &[&str]) {
    let architecture = if cfg!(target_arch = "x86_64") { "-march=x86-64-v3" } else { "-march=native" };
    let mut command = Command::new("g++");
    command.args(HOST_FLAGS).arg(architecture).args(flags).arg("-o").arg(out);
    expect_success(command.arg(root.join("tests/cuda/kernels/main.cpp")));
}

/// The kernels and their tests, optimised for the host.
fn on_host() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = scratch("numbers").join("kernels");
        build(root(), &program, &["-O2", "-Werror"]);
        program
    })
}

/// The names in the list of all.cuh.
fn listed_kernels() -> BTreeSet<String> {
    static NAMES: OnceLock<BTreeSet<String>> = OnceLock::new();
    let list =
        || expect_success(Command::new(on_host()).arg("--kernels")).lines().map(String::from).collect();
    NAMES.get_or_init(list).clone()
}

/// What ptxas says of one kernel.
#[derive(Debug, Default, Clone)]
struct Usage {
    registers: usize,
    shared_bytes: usize,
    /// Bytes of the stack, of stores and of loads of spilled registers.
    stack: [usize; 3],
}

/// The number before `unit`, 0 where there is none.
fn number_before(line: &str, unit: &str) -> usize {
    let words = line.find(unit).map(|end| line[..end].trim_end());
    words
        .and_then(|words| words.rsplit([' ', ',']).next())
        .map_or(0, |number| number.parse().expect("ptxas counts"))
}

fn usages(log: &str) -> BTreeMap<String, Usage> {
    let mut usages = BTreeMap::<String, Usage>::new();
    let mut name = String::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            name = rest.split('\'').next().expect("a name in quotes").into();
        } else if line.contains("bytes stack frame") {
            let stack = ["bytes stack frame", "bytes spill stores", "bytes spill loads"]
                .map(|unit| number_before(line, unit));
            usages.entry(name.clone()).or_default().stack = stack;
        } else if line.contains(" registers") {
            let usage = usages.entry(name.clone()).or_default();
            usage.registers = number_before(line, "registers");
            usage.shared_bytes = number_before(line, "bytes smem");
        }
    }
    usages
}

/// What ptxas says of every kernel, by architecture, where `compile(architecture, out)` compiles them.
fn compile_for<const N: usize>(
    architectures: [&'static str; N],
    compile: impl Fn(&str, &Path) -> Command + Sync,
) -> [BTreeMap<String, Usage>; N] {
    let compile = |architecture: &'static str| {
        let out = scratch("nvcc").join(format!("{architecture}.cubin"));
        usages(&expect_success(&mut compile(architecture, &out)))
    };
    let compile = &compile;
    thread::scope(|scope| {
        let threads = architectures.map(|architecture| scope.spawn(move || compile(architecture)));
        threads.map(|thread| thread.join().expect("the compiler succeeds"))
    })
}

/// The kernels in PTX for the oldest device.
fn ptx() -> &'static Path {
    static PTX: OnceLock<PathBuf> = OnceLock::new();
    PTX.get_or_init(|| {
        let out = scratch("nvcc").join("kernels.ptx");
        expect_success(&mut nvcc(&out, &["-ptx", "-arch=compute_80"]));
        out
    })
}

/// Kernels that use the stack, or of which ptxas says nothing, a line each.
fn spilled(usages: &BTreeMap<String, Usage>, architecture: &str) -> String {
    let spills = usages.iter().filter(|(_, usage)| usage.registers == 0 || usage.stack != [0; 3]);
    spills.map(|(name, usage)| format!("{name} on {architecture}: {usage:?}\n")).collect()
}

#[test]
fn kernels_compile_for_three_architectures_and_none_spills() {
    let compiled = compile_for(ARCHITECTURES, |architecture, out| {
        nvcc(out, &["-cubin", "-Xptxas", "-v", &format!("-arch={architecture}")])
    });
    let mut table = format!("{:42}{:>24}{:>14}\n", "kernel", "registers: 80, 90, 100", "shared bytes");
    for name in compiled[0].keys() {
        let of = compiled.each_ref().map(|usages| usages.get(name).cloned().unwrap_or_default());
        let registers = of.each_ref().map(|usage| usage.registers.to_string()).join(", ");
        writeln!(table, "{name:42}{registers:>24}{:>14}", of[0].shared_bytes).expect("a string grows");
    }
    println!("{table}");
    std::fs::write(scratch("nvcc").join("registers.txt"), &table).expect("the directory is there");
    for (usages, architecture) in compiled.iter().zip(ARCHITECTURES) {
        assert_eq!(spilled(usages, architecture), "", "kernels that use the stack");
        assert_eq!(
            usages.keys().cloned().collect::<BTreeSet<_>>(),
            listed_kernels(),
            "kernels for {architecture}"
        );
    }
}

/// Devices of little shared memory, which have architectures of their own: RTX 30 and A10, RTX 40 and L40S,
/// RTX 50.
#[test]
fn kernels_compile_for_smaller_devices_and_none_spills() {
    let architectures = ["sm_86", "sm_89", "sm_120"];
    // From the PTX of the oldest device, as the driver would: ptxas alone assigns registers.
    let compiled = compile_for(architectures, |architecture, out| {
        let mut ptxas = Command::new(toolkit().join("bin/ptxas"));
        ptxas.args(["-O3", "-v", &format!("-arch={architecture}")]).arg(ptx()).arg("-o").arg(out);
        ptxas
    });
    for (usages, architecture) in compiled.iter().zip(architectures) {
        assert_eq!(spilled(usages, architecture), "", "kernels that use the stack");
        assert_eq!(usages.len(), listed_kernels().len(), "kernels for {architecture}");
    }
}

/// 64 sums that are alive at once in threads of 32 registers each.
const SPILLING: &str = r#"
extern "C" __global__ void __launch_bounds__(1024, 2) spilling(float* x) {
    float sums[64];
#pragma unroll
    for (int i = 0; i < 64; i++) sums[i] = x[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; i++) x[i * 1024 + threadIdx.x] = sums[i] * sums[63 - i];
}
"#;

#[test]
fn a_kernel_that_spills_is_found() {
    let (source, out) = (scratch("spilling").join("spilling.cu"), scratch("spilling").join("spilling.cubin"));
    std::fs::write(&source, SPILLING).expect("the directory is there");
    let mut nvcc = Command::new(toolkit().join("bin/nvcc"));
    nvcc.args(["-O3", "-cubin", "-Xptxas", "-v", "-arch=sm_90", "-o"]).arg(out).arg(source);
    let found = spilled(&usages(&expect_success(&mut nvcc)), "sm_90");
    assert!(found.starts_with("spilling on sm_90"), "{found:?}");
}

/// Kernels that read, or write, memory element by element, with the reason.
const READS_NO_WORDS: [(&str, &str); 3] = [
    ("embedding_order", "compares tokens with tokens in shared memory"),
    ("fold_chunks", "a lane is a column of f32"),
    ("rope", "a thread turns one pair of channels in every head"),
];
const WRITES_NO_WORDS: [(&str, &str); 8] = [
    ("attention_delta", "a number for each row and head"),
    ("column_sums", "a number for each column and chunk of rows"),
    ("embedding_order", "a number goes to a place of its own"),
    ("fold_chunks", "a lane is a column"),
    ("layer_norm_weight_sums", "as column_sums"),
    ("rms_norm_weight_sums", "as column_sums"),
    ("rope", "a thread turns one pair of channels in every head"),
    ("sum_of_squares", "bins"),
];

#[test]
fn kernels_move_words_of_16_bytes() {
    let ptx = std::fs::read_to_string(ptx()).expect("nvcc wrote it");
    let mut n_entries = 0;
    for entry in ptx.split(".visible .entry ").skip(1) {
        n_entries += 1;
        let name = entry.split('(').next().expect("a name");
        let of = |exceptions: &[(&str, &str)]| {
            !exceptions.iter().any(|(exception, _)| name.starts_with(exception))
        };
        assert_eq!(entry.contains("ld.global.v4.u32"), of(&READS_NO_WORDS), "{name} reads words");
        assert_eq!(entry.contains("st.global.v4.u32"), of(&WRITES_NO_WORDS), "{name} writes words");
        // Tiles in shared memory as well.
        let tiles = ["attention_forward", "attention_backward"].iter().any(|kernel| name.starts_with(kernel));
        assert!(!tiles || entry.contains("st.shared.v4"), "{name} fills its tiles with words");
    }
    assert_eq!(n_entries, listed_kernels().len());
}

#[test]
fn kernels_compile_as_on_a_node_with_nvrtc_and_without_headers() {
    let dir = scratch("nvrtc");
    let texts = dir.join("texts");
    std::fs::create_dir_all(&texts).expect("the directory is there");
    for (name, text) in kernels::FILES.iter().chain(&[("all.cuh", kernels::MAIN)]) {
        std::fs::write(texts.join(name), text).expect("the directory is there");
        for line in text.lines().filter(|line| line.trim_start().starts_with("#include")) {
            assert!(
                kernels::FILES.iter().any(|(file, _)| line.contains(&format!("\"{file}\""))),
                "{name}: {line}"
            );
        }
    }
    let (program, lib) = (dir.join("nvrtc"), toolkit().join("lib"));
    let mut compile = Command::new("g++");
    compile.args(["-std=c++17", "-O1", "-Wall", "-Wextra"]).arg(root().join("tests/cuda/kernels/nvrtc.cpp"));
    compile.arg("-I").arg(toolkit().join("include")).arg("-L").arg(&lib).arg("-l:libnvrtc.so.13");
    expect_success(compile.arg(format!("-Wl,-rpath,{}", lib.display())).arg("-o").arg(&program));
    let binary = dir.join("kernels.cubin");
    let mut command = Command::new(&program);
    command.arg(&texts).arg("all.cuh").arg(&binary).args(kernels::FLAGS).arg("--gpu-architecture=sm_90");
    // It looks for a library of its own when it compiles.
    command.env("LD_LIBRARY_PATH", &lib);
    let said = expect_success(&mut command);
    assert!(said.trim().is_empty(), "NVRTC says: {said}");
    let binary = std::fs::read(&binary).expect("the program wrote it");
    for name in listed_kernels() {
        let symbol = [name.as_bytes(), b"\0"].concat();
        assert!(binary.windows(symbol.len()).any(|part| part == symbol), "{name} is not in the binary");
    }
}

#[test]
fn kernels_give_the_numbers_of_f64_in_every_order_of_threads() {
    println!("{}", expect_success(&mut Command::new(on_host())));
}

#[test]
fn kernels_stay_inside_their_arrays() {
    // A kernel that stops in the middle leaves what it had allocated.
    expect_success(Command::new(with_faults()).env("ASAN_OPTIONS", "detect_leaks=0").env("ORDERS", "1"));
}

#[test]
fn the_shim_also_runs_on_contexts_of_the_system() {
    let program = scratch("contexts").join("kernels");
    build(root(), &program, &["-O0", "-DSHIM_UCONTEXT"]);
    expect_success(Command::new(program).args(["shim_", "sums_over_rows"]).env("ORDERS", "2"));
}

/// A fault that somebody could put into a kernel, and the tests that find it.
struct Fault {
    file: &'static str,
    text: &'static str,
    /// The same with the fault where `FAULT` holds.
    instead: &'static str,
    found_by: &'static str,
}

const FAULTS: [Fault; 7] = [
    // Barriers: a block's sums are read before all warps have written them; a tile is loaded over one in use.
    Fault {
        file: "common.cuh",
        text: "        sums[1][warp] = b;\n    }\n    __syncthreads();",
        instead: "        sums[1][warp] = b;\n    }\n    if (!FAULT) __syncthreads();",
        found_by: "layer_norm_forward",
    },
    Fault {
        file: "attention.cu",
        text: "            __syncthreads();  // the tiles before these were used",
        instead: "            if (!FAULT) __syncthreads();",
        found_by: "attention_forward",
    },
    Fault {
        file: "tiles.cuh",
        text: "scratch[row(i) * LEFT_LD + column(j)] = left[i][j];\n        }\n        __syncwarp();",
        instead: "scratch[row(i) * LEFT_LD + column(j)] = left[i][j];\n        }\n        \
                  if (!FAULT) __syncwarp();",
        found_by: "attention_forward",
    },
    // Numbers: a mask that hides one key too many; a tie that is always rounded up.
    Fault {
        file: "attention.cu",
        text: "first + Tiles::row(i) <= query + column",
        instead: "first + Tiles::row(i) <= query + column - int(FAULT)",
        found_by: "attention_backward",
    },
    Fault {
        file: "common.cuh",
        text: "0x7fffu + ((bits >> 16) & 1u)",
        instead: "(FAULT ? 0x8000u : 0x7fffu + ((bits >> 16) & 1u))",
        found_by: "casts_round",
    },
    // The sum of squares: bins that are emptied too late.
    Fault {
        file: "optimizer.cu",
        text: "constexpr int SQUARES_PER_EMPTYING = 1 << 16;",
        instead: "const int SQUARES_PER_EMPTYING = FAULT ? 1 << 20 : 1 << 16;",
        found_by: "sums_of_squares",
    },
    // Addresses: the last chunk of an array is read as if it were whole.
    Fault {
        file: "common.cuh",
        text: "x[i] = i < n ? to_f32(p[i]) : 0.0f;",
        instead: "x[i] = i < n || FAULT ? to_f32(p[i]) : 0.0f;",
        found_by: "additions_round",
    },
];

/// The tests' program under AddressSanitizer, with all faults in it. The variable `PLANTED` turns one on by
/// its number; without it the kernels are as in the sources.
fn with_faults() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let dir = scratch("faults");
        for from in ["src/backend/cuda/kernels", "tests/cuda/kernels", "tests/cuda/shim"] {
            std::fs::create_dir_all(dir.join(from)).expect("the directory is there");
            for entry in std::fs::read_dir(root().join(from)).expect("sources") {
                let entry = entry.expect("sources");
                std::fs::copy(entry.path(), dir.join(from).join(entry.file_name())).expect("a copy");
            }
        }
        let kernels = dir.join("src/backend/cuda/kernels");
        for (number, Fault { file, text, instead, .. }) in FAULTS.iter().enumerate() {
            let source = std::fs::read_to_string(kernels.join(file)).expect("a source");
            assert!(source.contains(text), "{file} has no {text}");
            let instead = instead.replace("FAULT", &format!("(planted == {number})"));
            let source = source.replace(text, &instead);
            std::fs::write(kernels.join(file), source).expect("the directory is there");
        }
        let common = kernels.join("common.cuh");
        let planted = "#include <cstdlib>\nstatic const char* const number = std::getenv(\"PLANTED\");\n\
                       static const int planted = number ? std::atoi(number) : -1;\n";
        let source = std::fs::read_to_string(&common).expect("a source");
        let source = source.replacen("#pragma once\n", &format!("#pragma once\n{planted}"), 1);
        assert!(source.contains(planted), "common.cuh begins with #pragma once");
        std::fs::write(&common, source).expect("the directory is there");
        let program = dir.join("kernels");
        build(&dir, &program, &["-O0", "-g1", "-fsanitize=address"]);
        program
    })
}

#[test]
fn faults_put_into_kernels_are_found() {
    let program = with_faults();
    let next = AtomicUsize::new(0);
    let check_faults = || {
        while let Some((number, fault)) = FAULTS.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed))
        {
            let mut command = Command::new(program);
            command
                .arg(fault.found_by)
                .env("ASAN_OPTIONS", "detect_leaks=0")
                .env("PLANTED", number.to_string());
            let (output, said) = output_of(&mut command);
            let Fault { file, text, instead, .. } = fault;
            assert!(
                !output.status.success(),
                "{instead:?} instead of {text:?} in {file} is not found:\n{said}"
            );
        }
    };
    thread::scope(|scope| {
        scope.spawn(check_faults);
        scope.spawn(check_faults);
    });
}
