//! One matrix product through cuBLASLt: descriptors and the algorithm are found once for each shape and
//! cached.
//!
//! Matrices here are column-major, as the library's are. Must not know: what is multiplied.

use crate::backend::{View, ViewMut};
use crate::dtype::DType;
use crate::error::{Error, Result};
use cudarc::cublaslt::{result as lt, sys};
use cudarc::driver::sys::CUstream;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::rc::Rc;

/// What the library may use of a work buffer; its own advice for Hopper.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// What is done to a product before it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// The bias is added to each column.
    Bias,
    /// The bias is added, the sum is stored in the auxiliary matrix, and its GELU is the result.
    BiasGelu,
    /// The product is multiplied by GELU' of the auxiliary matrix.
    GeluBackward,
}

/// One product: `out (m, n) = a * b + beta * out`, where `a` and `b` may be transposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Product {
    /// Rows of `out`.
    pub m: usize,
    /// Columns of `out`.
    pub n: usize,
    /// Columns of `a` and rows of `b`, once transposed.
    pub k: usize,
    /// `a` is stored as (k, m).
    pub transpose_a: bool,
    /// `b` is stored as (n, k).
    pub transpose_b: bool,
    /// Adds to `out`.
    pub accumulate: bool,
    /// What else is done.
    pub epilogue: Epilogue,
}

/// The operands of a [`Product`].
pub struct Operands<'a> {
    /// Dense.
    pub a: View<'a>,
    /// Dense, of the type of `a`.
    pub b: View<'a>,
    /// Dense.
    pub out: ViewMut<'a>,
    /// (m), of the type of `out`.
    pub bias: Option<View<'a>>,
    /// The auxiliary matrix, (m, n) of the type of `out`: its address, since one epilogue writes it and one
    /// reads it.
    pub aux: Option<u64>,
    /// At least [`WORKSPACE_BYTES`].
    pub workspace: ViewMut<'a>,
}

/// What an algorithm is chosen by.
#[derive(PartialEq, Eq, Hash, Clone, Copy)]
struct Key {
    product: Product,
    inp: DType,
    out: DType,
    /// Of a, b, out, the bias and the auxiliary matrix, in bytes; 0 where there is none.
    alignments: [u32; 5],
}

/// A library handle and what it has been asked for.
pub struct CublasLt {
    handle: sys::cublasLtHandle_t,
    /// f32 products may round their operands to TF32.
    tf32: bool,
    known: RefCell<HashMap<Key, Rc<Prepared>>>,
}

/// Descriptors of one product, and how it is computed.
struct Prepared {
    operation: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Prepared {
    /// Says where the epilogue's vector and matrix lie.
    fn point(&self, bias: Option<u64>, aux: Option<u64>) -> std::result::Result<(), lt::CublasError> {
        use sys::cublasLtMatmulDescAttributes_t as Op;
        let set =
            |attribute, addr: Option<u64>| addr.map_or(Ok(()), |addr| set(self.operation, attribute, addr));
        set(Op::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)?;
        set(Op::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux)
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: created once, used by no call that has not returned. An error at the end is of no
        // consequence.
        unsafe {
            lt::destroy_matmul_desc(self.operation).ok();
            self.layouts.into_iter().for_each(|layout| _ = lt::destroy_matrix_layout(layout));
        }
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: created once. An error at the end is of no consequence.
        unsafe { lt::destroy_handle(self.handle) }.ok();
    }
}

fn data_type(dtype: DType) -> sys::cudaDataType {
    match dtype {
        DType::F32 => sys::cudaDataType_t::CUDA_R_32F,
        DType::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
        DType::U32 => panic!("token ids are not numbers"),
    }
}

/// What an address is a multiple of, as far as the library cares.
fn alignment(addr: u64) -> u32 {
    (1 << addr.trailing_zeros().min(8)) as u32
}

impl CublasLt {
    /// Opens the library for the current context.
    pub fn open(tf32: bool) -> Result<Self> {
        let handle = lt::create_handle().map_err(|e| Error::Comm(format!("cublasLtCreate failed: {e}")))?;
        Ok(CublasLt { handle, tf32, known: RefCell::default() })
    }

    /// Finds the algorithm of a product, whose epilogue uses these addresses: the library takes their
    /// alignment from the addresses themselves, as it has no preference for it.
    fn prepare(
        &self,
        key: &Key,
        bias: Option<u64>,
        aux: Option<u64>,
    ) -> std::result::Result<Prepared, lt::CublasError> {
        use sys::cublasComputeType_t as Compute;
        use sys::cublasLtEpilogue_t as E;
        use sys::cublasLtMatmulDescAttributes_t as Op;
        use sys::cublasLtMatmulPreferenceAttributes_t as Pref;
        let Product { m, n, k, transpose_a, transpose_b, epilogue, .. } = key.product;
        let compute = match self.tf32 && key.inp == DType::F32 {
            true => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            false => Compute::CUBLAS_COMPUTE_32F,
        };
        let operation = lt::create_matmul_desc(compute, data_type(DType::F32))?;
        let layout = |dtype, rows: usize, columns: usize| {
            lt::create_matrix_layout(data_type(dtype), rows as u64, columns as u64, rows as i64)
        };
        let a = if transpose_a { layout(key.inp, k, m)? } else { layout(key.inp, m, k)? };
        let b = if transpose_b { layout(key.inp, n, k)? } else { layout(key.inp, k, n)? };
        let layouts = [a, b, layout(key.out, m, n)?];
        // SAFETY: an algorithm is plain numbers, and the zeros are overwritten below.
        let algorithm = unsafe { std::mem::zeroed() };
        let mut prepared = Prepared { operation, layouts, algorithm };

        set(operation, Op::CUBLASLT_MATMUL_DESC_TRANSA, i32::from(transpose_a))?;
        set(operation, Op::CUBLASLT_MATMUL_DESC_TRANSB, i32::from(transpose_b))?;
        let code = match epilogue {
            Epilogue::None => E::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias => E::CUBLASLT_EPILOGUE_BIAS,
            Epilogue::BiasGelu => E::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
            Epilogue::GeluBackward => E::CUBLASLT_EPILOGUE_DGELU,
        };
        set(operation, Op::CUBLASLT_MATMUL_DESC_EPILOGUE, code as i32)?;
        if matches!(epilogue, Epilogue::BiasGelu | Epilogue::GeluBackward) {
            set(operation, Op::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, m as i64)?;
        }
        prepared.point(bias, aux)?;

        let preference = Preference(lt::create_matmul_pref()?);
        preference.set(Pref::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, WORKSPACE_BYTES as u64)?;
        let [align_a, align_b, align_out, ..] = key.alignments;
        preference.set(Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align_a)?;
        preference.set(Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align_b)?;
        preference.set(Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align_out)?;
        preference.set(Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align_out)?;
        let [a, b, out] = layouts;
        // SAFETY: descriptors made above.
        let found =
            unsafe { lt::get_matmul_algo_heuristic(self.handle, operation, a, b, out, out, preference.0)? };
        prepared.algorithm = found.algo;
        Ok(prepared)
    }

    /// Puts a product on a stream.
    ///
    /// # Panics
    /// With an error ([`Error::raise`]) where the library has no algorithm for it, or refuses the call.
    pub fn multiply(&self, stream: CUstream, product: Product, operands: Operands<'_>) {
        let Product { m, n, k, accumulate, epilogue, .. } = product;
        let Operands { a, b, out, bias, aux, workspace } = operands;
        assert_eq!((a.numel(), b.numel(), out.numel()), (m * k, k * n, m * n), "operands of {product:?}");
        assert_eq!(a.dtype(), b.dtype(), "operands of {product:?} have one type");
        assert!(workspace.numel() * workspace.dtype().bytes() >= WORKSPACE_BYTES, "workspace of {product:?}");
        if m == 0 || n == 0 {
            return;
        }
        assert_eq!(
            bias.is_some(),
            matches!(epilogue, Epilogue::Bias | Epilogue::BiasGelu),
            "bias of {product:?}"
        );
        let bias = bias.map(|bias| bias.addr());
        let addrs = [Some(a.addr()), Some(b.addr()), Some(out.addr()), bias, aux];
        let alignments = addrs.map(|addr| addr.map_or(0, alignment));
        let key = Key { product, inp: a.dtype(), out: out.dtype(), alignments };
        let known = self.known.borrow().get(&key).cloned();
        let prepared = known.unwrap_or_else(|| {
            let prepared = Rc::new(self.prepare(&key, bias, aux).unwrap_or_else(|e| {
                let types = format!("{} to {}", key.inp.name(), key.out.name());
                refused(format!("has no algorithm for {product:?} of {types}"), e)
            }));
            self.known.borrow_mut().insert(key, Rc::clone(&prepared));
            prepared
        });
        prepared
            .point(bias, aux)
            .unwrap_or_else(|e| refused(format!("does not take the addresses of {product:?}"), e));
        let (alpha, beta) = (1.0f32, if accumulate { 1.0f32 } else { 0.0 });
        let [a_layout, b_layout, out_layout] = prepared.layouts;
        let pointer = |addr: u64| addr as usize as *mut c_void;
        // SAFETY: device memory of the sizes that the layouts say, in order on the stream; the factors are
        // read before the call returns.
        let called = unsafe {
            lt::matmul(
                self.handle,
                prepared.operation,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                pointer(a.addr()),
                a_layout,
                pointer(b.addr()),
                b_layout,
                pointer(out.addr()),
                out_layout,
                pointer(out.addr()),
                out_layout,
                &prepared.algorithm,
                pointer(workspace.addr()),
                WORKSPACE_BYTES,
                stream.cast(),
            )
        };
        called.unwrap_or_else(|e| refused(format!("fails at {product:?}"), e));
    }
}

/// Ends the work: operations return nothing.
fn refused(what: String, error: lt::CublasError) -> ! {
    Error::Comm(format!(
        "cuBLASLt {what}: {error}; try another version of the library, or set run.backend = \"cpu\""
    ))
    .raise()
}

/// Sets an attribute of an operation.
fn set<T>(
    operation: sys::cublasLtMatmulDesc_t,
    attribute: sys::cublasLtMatmulDescAttributes_t,
    value: T,
) -> std::result::Result<(), lt::CublasError> {
    // SAFETY: a living descriptor; the value is copied before the call returns.
    unsafe { lt::set_matmul_desc_attribute(operation, attribute, (&raw const value).cast(), size_of::<T>()) }
}

/// What is asked of an algorithm.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn set<T>(
        &self,
        attribute: sys::cublasLtMatmulPreferenceAttributes_t,
        value: T,
    ) -> std::result::Result<(), lt::CublasError> {
        // SAFETY: as for operations.
        unsafe { lt::set_matmul_pref_attribute(self.0, attribute, (&raw const value).cast(), size_of::<T>()) }
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: created once. An error at the end is of no consequence.
        unsafe { lt::destroy_matmul_pref(self.0) }.ok();
    }
}
