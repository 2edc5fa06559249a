//! Host arenas, their views as slices, and [`Shared`]: one mutable slice that tasks write disjoint parts of.
//!
//! The only place that reads through the address of a view. Must not know: operations.

use super::element::Element;
use crate::backend::buffer::{Arena, Space, View, ViewMut};
use crate::dtype::DType;
use crate::error::{Error, Result};
use std::marker::PhantomData;
use std::sync::Arc;

/// `bytes` of zeroed host memory that begin on a page, in huge pages where the system has them.
///
/// # Errors
/// The system does not give so much.
pub fn arena(bytes: usize) -> Result<Arc<Arena>> {
    let mut map = memmap2::MmapMut::map_anon(bytes.max(1)).map_err(|e| {
        Error::Comm(format!(
            "cannot allocate {bytes} bytes for model and activations: {e}; start more ranks on more nodes, \
             or lower train.micro_batch_size or the model's sizes (`zero3 plan` shows what is needed)"
        ))
    })?;
    // Fewer entries of the address cache for the same bytes, where the system has such pages; as well
    // without.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    let base = map.as_mut_ptr().expose_provenance() as u64;
    Ok(Arena::new(base, bytes, Space::Host, Box::new(map)))
}

/// The address as a pointer, after checking that the view is host memory of this type.
fn checked<T>(addr: u64, space: Space, dtype: DType, want: DType) -> *mut T {
    assert_eq!(space, Space::Host, "a CPU kernel was given a view of device memory");
    assert_eq!(dtype, want, "view of {} used as {}", dtype.name(), want.name());
    let ptr: *mut T = std::ptr::with_exposed_provenance_mut(addr as usize);
    assert!(ptr.is_aligned() && !ptr.is_null(), "view at {addr:#x} is not aligned for {}", want.name());
    ptr
}

/// The elements of a view of numbers.
pub fn elements<'a, T: Element>(view: View<'a>) -> &'a [T] {
    let ptr: *const T = checked(view.addr(), view.space(), view.dtype(), T::DTYPE);
    // SAFETY: `Buf::new` keeps the range inside its arena, the view borrows the Buf (which holds the arena)
    // for 'a, and no exclusive view of the same elements lives meanwhile. Every bit pattern is an f32 and a
    // bf16.
    unsafe { std::slice::from_raw_parts(ptr, view.numel()) }
}

/// The elements of an exclusive view of numbers.
pub fn elements_mut<'a, T: Element>(view: ViewMut<'a>) -> &'a mut [T] {
    let ptr: *mut T = checked(view.addr(), view.space(), view.dtype(), T::DTYPE);
    // SAFETY: as in `elements`; the view was the exclusive borrow of these elements for 'a and is consumed.
    unsafe { std::slice::from_raw_parts_mut(ptr, view.numel()) }
}

/// The f32 elements of a view.
pub fn f32s<'a>(view: View<'a>) -> &'a [f32] {
    elements(view)
}

/// The f32 elements of an exclusive view.
pub fn f32s_mut<'a>(view: ViewMut<'a>) -> &'a mut [f32] {
    elements_mut(view)
}

/// The u32 elements of a view.
pub fn u32s<'a>(view: View<'a>) -> &'a [u32] {
    let ptr: *const u32 = checked(view.addr(), view.space(), view.dtype(), DType::U32);
    // SAFETY: as in `elements`; every bit pattern is a u32.
    unsafe { std::slice::from_raw_parts(ptr, view.numel()) }
}

/// The u32 elements of an exclusive view.
pub fn u32s_mut<'a>(view: ViewMut<'a>) -> &'a mut [u32] {
    let ptr: *mut u32 = checked(view.addr(), view.space(), view.dtype(), DType::U32);
    // SAFETY: as in `elements_mut`; every bit pattern is a u32.
    unsafe { std::slice::from_raw_parts_mut(ptr, view.numel()) }
}

/// The bytes of a view of any type.
pub fn bytes<'a>(view: View<'a>) -> &'a [u8] {
    let ptr: *const u8 = checked(view.addr(), view.space(), view.dtype(), view.dtype());
    // SAFETY: as in `elements`; any element is bytes.
    unsafe { std::slice::from_raw_parts(ptr, view.numel() * view.dtype().bytes()) }
}

/// The bytes of an exclusive view of any type.
pub fn bytes_mut<'a>(view: ViewMut<'a>) -> &'a mut [u8] {
    let ptr: *mut u8 = checked(view.addr(), view.space(), view.dtype(), view.dtype());
    // SAFETY: as in `elements_mut`; any bytes are elements of every DType.
    unsafe { std::slice::from_raw_parts_mut(ptr, view.numel() * view.dtype().bytes()) }
}

/// A mutable slice whose disjoint parts are written by concurrent tasks.
#[derive(Clone, Copy)]
pub struct Shared<'a, T = f32> {
    ptr: *mut T,
    numel: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: a Shared is a borrow of numbers; what may be touched from which thread is the contract of `part`
// and `ptr`.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Borrows `slice` for tasks.
    pub fn new(slice: &'a mut [T]) -> Self {
        Shared { ptr: slice.as_mut_ptr(), numel: slice.len(), life: PhantomData }
    }

    /// Elements.
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// The elements `[start, start + n)`.
    ///
    /// # Safety
    /// While the result lives, no other part and no other pointer into these elements may be used.
    pub unsafe fn part(&self, start: usize, n: usize) -> &'a mut [T] {
        assert!(start + n <= self.numel, "part [{start}, {}) of {} elements", start + n, self.numel);
        // SAFETY: inside the borrowed slice; exclusive by the contract above.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(start), n) }
    }

    /// Pointer to element `start`, of which `span` elements may be reached.
    pub fn ptr(&self, start: usize, span: usize) -> *mut T {
        assert!(start + span <= self.numel, "span [{start}, {}) of {} elements", start + span, self.numel);
        self.ptr.wrapping_add(start)
    }
}

#[cfg(test)]
pub(crate) mod test_memory {
    //! Buffers over vectors, for tests of kernels.

    use crate::backend::buffer::{Arena, Buf, Space};
    use crate::backend::cpu::element::Element;
    use crate::dtype::DType;
    use half::bf16;

    fn buf<T: Send + Sync + 'static>(mut xs: Vec<T>, dtype: DType) -> Buf {
        let numel = xs.len();
        let base = xs.as_mut_ptr().expose_provenance() as u64;
        let arena = Arena::new(base, std::mem::size_of_val(xs.as_slice()), Space::Host, Box::new(xs));
        Buf::new(&arena, 0, numel, dtype)
    }

    /// Host memory for buffers of one's own.
    pub(crate) fn arena(bytes: usize) -> std::sync::Arc<Arena> {
        let mut memory = vec![0u64; bytes.div_ceil(8)];
        let base = memory.as_mut_ptr().expose_provenance() as u64;
        Arena::new(base, bytes, Space::Host, Box::new(memory))
    }

    /// A host buffer with these elements.
    pub(crate) fn buf_f32(xs: &[f32]) -> Buf {
        buf(xs.to_vec(), DType::F32)
    }

    /// A host buffer of `dtype` with these elements, rounded to it.
    pub(crate) fn buf_of(dtype: DType, xs: &[f32]) -> Buf {
        match dtype {
            DType::F32 => buf_f32(xs),
            DType::Bf16 => buf(xs.iter().map(|&x| <bf16 as Element>::store(x)).collect(), dtype),
            DType::U32 => panic!("token ids are not numbers"),
        }
    }

    /// A host buffer with these token ids.
    pub(crate) fn buf_u32(xs: &[u32]) -> Buf {
        buf(xs.to_vec(), DType::U32)
    }

    /// What an f32 or bf16 buffer holds.
    pub(crate) fn read(buf: &Buf) -> Vec<f32> {
        match buf.dtype() {
            DType::Bf16 => super::elements::<bf16>(buf.view()).iter().map(|x| x.load()).collect(),
            _ => super::f32s(buf.view()).to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::test_memory::{buf_f32, buf_u32, read};
    use super::*;
    use crate::backend::Buf;

    #[test]
    fn views_show_the_elements_of_their_range() {
        let mut buf = buf_f32(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(f32s(buf.view().range(1..3)), [2.0, 3.0]);
        let (mut left, right) = buf.view_mut().split_at(3);
        f32s_mut(left.reborrow())[2] = 7.0;
        f32s_mut(right)[0] = 8.0;
        assert_eq!(read(&buf), [1.0, 2.0, 7.0, 8.0]);
        assert_eq!(bytes_mut(buf.view_mut().range(0..1)), 1.0f32.to_le_bytes());
        assert!(u32s(buf_u32(&[]).view()).is_empty());
    }

    #[test]
    fn an_arena_begins_as_zeros_and_one_that_does_not_fit_is_an_error() {
        let arena = super::arena(3 * 4).unwrap();
        assert_eq!(arena.bytes(), 12);
        assert_eq!(f32s(Buf::new(&arena, 0, 3, DType::F32).view()), [0.0; 3]);
        assert!(super::arena(0).is_ok());
        let message = super::arena(1 << 60).err().expect("no machine has so much").to_string();
        assert!(message.contains("1152921504606846976 bytes"), "{message}");
    }

    #[test]
    #[should_panic(expected = "view of u32 used as f32")]
    fn a_view_of_tokens_is_not_read_as_numbers() {
        f32s(buf_u32(&[1]).view());
    }
}
