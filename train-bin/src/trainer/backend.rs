//! The built-in backends and the choice among them. The only place that depends on Cargo features for backends.

use std::fmt;

use clap::ValueEnum;
use emberlm_quant::tensor_file::FloatDtype;
use serde::Serialize;

use crate::trainer::step::{TrainBackend, Training};

/// The backend that computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// `cuda` if built in and a device is found, else `wgpu` likewise, else `flex`.
    #[default]
    Auto,
    /// The fast CPU backend.
    Flex,
    /// The deterministic CPU reference.
    #[value(name = "ndarray")]
    NdArray,
    /// Vulkan, Metal and DirectX GPUs.
    Wgpu,
    /// NVIDIA GPUs.
    Cuda,
}

impl Backend {
    /// Its name in settings and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Flex => "flex",
            Self::NdArray => "ndarray",
            Self::Wgpu => "wgpu",
            Self::Cuda => "cuda",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Work that runs on the chosen backend.
pub trait Job {
    /// Its result.
    type Output;
    /// Runs it.
    fn run<A: TrainBackend>(self, device: A::Device) -> Self::Output;
}

/// Why a backend can't be used.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// It is not in this build.
    #[error(
        "backend {name} is not in this build; it has: {built}. Build with it: cargo build --release --features {feature}"
    )]
    NotBuilt {
        /// The backend.
        name: &'static str,
        /// The backends of this build.
        built: String,
        /// The Cargo feature that builds it.
        feature: &'static str,
    },
    /// It is built in, but has no device.
    #[error(
        "backend {name}: no device found. Check the device and its driver, or run on the CPU with --backend flex"
    )]
    NoDevice {
        /// The backend.
        name: &'static str,
    },
}

/// Runs a job on a backend; `auto` is the first of `cuda`, `wgpu` and `flex` that is built in and has a device.
///
/// # Errors
/// [`BackendError`].
pub fn run_on<J: Job>(backend: Backend, job: J) -> Result<J::Output, BackendError> {
    let backend = resolve(backend);
    tracing::info!(backend = backend.name(), "backend chosen");
    match backend {
        #[cfg(feature = "cpu")]
        Backend::Flex => Ok(job.run::<Training<burn_flex::Flex>>(Default::default())),
        #[cfg(feature = "ndarray")]
        Backend::NdArray => Ok(job.run::<Training<burn_ndarray::NdArray<f32>>>(Default::default())),
        #[cfg(feature = "wgpu")]
        Backend::Wgpu if gpu::computes::<burn_wgpu::Wgpu>() => {
            Ok(job.run::<Training<burn_wgpu::Wgpu>>(Default::default()))
        }
        #[cfg(feature = "cuda")]
        Backend::Cuda if gpu::computes::<burn_cuda::Cuda>() => {
            Ok(job.run::<Training<burn_cuda::Cuda>>(Default::default()))
        }
        other => Err(refusal(other)),
    }
}

/// Replaces `auto` by the backend that it selects on this machine.
pub fn resolve(backend: Backend) -> Backend {
    match backend {
        #[cfg(feature = "cuda")]
        Backend::Auto if gpu::computes::<burn_cuda::Cuda>() => Backend::Cuda,
        #[cfg(feature = "wgpu")]
        Backend::Auto if gpu::wgpu_has_gpu() => Backend::Wgpu,
        Backend::Auto => Backend::Flex,
        chosen => chosen,
    }
}

/// The float type of activations with weights of type `dtype`, also for a backend that is not built in.
pub fn activations(backend: Backend, dtype: FloatDtype) -> FloatDtype {
    match resolve(backend) {
        Backend::Wgpu | Backend::Cuda => dtype,
        Backend::Flex | Backend::NdArray | Backend::Auto => FloatDtype::F32,
    }
}

fn refusal(backend: Backend) -> BackendError {
    let (name, feature, is_built) = match backend {
        Backend::Cuda => ("cuda", "cuda", cfg!(feature = "cuda")),
        Backend::Wgpu => ("wgpu", "wgpu", cfg!(feature = "wgpu")),
        Backend::NdArray => ("ndarray", "ndarray", cfg!(feature = "ndarray")),
        Backend::Flex | Backend::Auto => ("flex", "cpu", cfg!(feature = "cpu")),
    };
    if is_built {
        return BackendError::NoDevice { name };
    }
    let all = [
        ("flex", cfg!(feature = "cpu")),
        ("ndarray", cfg!(feature = "ndarray")),
        ("wgpu", cfg!(feature = "wgpu")),
        ("cuda", cfg!(feature = "cuda")),
    ];
    let built: Vec<&str> = all.iter().filter(|(_, built)| *built).map(|(name, _)| *name).collect();
    BackendError::NotBuilt { name, built: built.join(", "), feature }
}

/// Detecting GPUs. CubeCL panics without a driver, which means that there is none.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod gpu {
    use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

    use burn::tensor::{Tensor, backend::Backend};

    /// Whether `probe` returns true without a panic.
    fn answers(probe: impl FnOnce() -> bool) -> bool {
        let hook = take_hook();
        set_hook(Box::new(|_| {}));
        let answer = catch_unwind(AssertUnwindSafe(probe)).unwrap_or(false);
        set_hook(hook);
        answer
    }

    /// Whether the backend's default device computes.
    pub(super) fn computes<B: Backend>() -> bool {
        answers(|| {
            let one = Tensor::<B, 1>::ones([1], &Default::default());
            (one * 2.0).into_data().iter::<f32>().eq([2.0])
        })
    }

    /// Whether there is a real GPU: a software device is slower than the CPU backends, and is used only on request.
    #[cfg(feature = "wgpu")]
    pub(super) fn wgpu_has_gpu() -> bool {
        use burn::tensor::backend::Device;
        use burn_wgpu::{Wgpu, WgpuDevice};
        let kinds =
            [WgpuDevice::DiscreteGpu(0), WgpuDevice::IntegratedGpu(0), WgpuDevice::VirtualGpu(0)];
        let counted = |kind: &WgpuDevice| Wgpu::<f32, i32, u32>::device_count(kind.to_id().type_id);
        answers(|| kinds.iter().any(|kind| counted(kind) > 0)) && computes::<Wgpu>()
    }
}
