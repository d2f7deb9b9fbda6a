//! The backends that are built in, and the choice among them. The only place that asks which are.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::config::Backend;
use crate::step::TrainBackend;

/// Work that runs on whatever backend is chosen.
pub trait Job {
    /// What it gives.
    type Output;
    /// Does it.
    fn run<A: TrainBackend>(self, device: A::Device) -> Self::Output;
}

/// Why a backend can't be used.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// It was left out of this build.
    #[error(
        "backend {name} is not in this build; it has: {built}. Build with it: cargo build --release --features {feature}"
    )]
    NotBuilt {
        /// The backend.
        name: &'static str,
        /// Those that are built in.
        built: String,
        /// The Cargo feature that brings it.
        feature: &'static str,
    },
    /// It is built in, but no device answers.
    #[error(
        "backend {name}: no device answers. Is there one, with its driver? On the CPU: --backend flex"
    )]
    NoDevice {
        /// The backend.
        name: &'static str,
    },
}

/// Runs a job on the backend that was asked for; `auto` is `cuda`, `wgpu` or `flex`, the first that is built in and has a GPU.
///
/// # Errors
/// [`BackendError`].
pub fn run_on<J: Job>(backend: Backend, job: J) -> Result<J::Output, BackendError> {
    match resolve(backend) {
        #[cfg(feature = "cpu")]
        Backend::Flex => Ok(job.run::<Autodiff<burn_flex::Flex>>(Default::default())),
        #[cfg(feature = "cpu")]
        Backend::NdArray => Ok(job.run::<Autodiff<burn_ndarray::NdArray<f32>>>(Default::default())),
        #[cfg(feature = "wgpu")]
        Backend::Wgpu if wgpu_answers() => {
            Ok(job.run::<Autodiff<burn_wgpu::Wgpu>>(Default::default()))
        }
        #[cfg(feature = "cuda")]
        Backend::Cuda if cuda_answers() => {
            Ok(job.run::<Autodiff<burn_cuda::Cuda>>(Default::default()))
        }
        other => Err(refusal(other)),
    }
}

#[allow(unused_imports, reason = "a build without any backend refuses them all")]
use burn::backend::Autodiff;

/// The backend that `auto` stands for on this machine; any other stands for itself.
pub fn resolve(backend: Backend) -> Backend {
    match backend {
        #[cfg(feature = "cuda")]
        Backend::Auto if cuda_answers() => Backend::Cuda,
        #[cfg(feature = "wgpu")]
        Backend::Auto if wgpu_has_gpu() => Backend::Wgpu,
        Backend::Auto => Backend::Flex,
        chosen => chosen,
    }
}

fn refusal(backend: Backend) -> BackendError {
    let (name, feature, is_built) = match backend {
        Backend::Cuda => ("cuda", "cuda", cfg!(feature = "cuda")),
        Backend::Wgpu => ("wgpu", "wgpu", cfg!(feature = "wgpu")),
        Backend::NdArray => ("ndarray", "cpu", cfg!(feature = "cpu")),
        Backend::Flex | Backend::Auto => ("flex", "cpu", cfg!(feature = "cpu")),
    };
    if is_built {
        return BackendError::NoDevice { name };
    }
    let all = [
        ("flex, ndarray", cfg!(feature = "cpu")),
        ("wgpu", cfg!(feature = "wgpu")),
        ("cuda", cfg!(feature = "cuda")),
    ];
    let built: Vec<&str> = all.iter().filter(|(_, built)| *built).map(|(name, _)| *name).collect();
    BackendError::NotBuilt { name, built: built.join(", "), feature }
}

/// Whether `probe` comes back true. Drivers that are missing make CubeCL panic, which is an answer too.
#[allow(dead_code, reason = "used by the GPU backends only")]
fn answers(probe: impl FnOnce() -> bool) -> bool {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let answer = catch_unwind(AssertUnwindSafe(probe)).unwrap_or(false);
    std::panic::set_hook(hook);
    answer
}

#[cfg(feature = "wgpu")]
fn wgpu_answers() -> bool {
    use burn::tensor::Tensor;
    answers(|| {
        let one = Tensor::<burn_wgpu::Wgpu, 1>::ones([1], &Default::default());
        (one * 2.0).into_data().iter::<f32>().eq([2.0])
    })
}

/// Whether there is a real GPU: a software device is slower than the CPU backends, and is taken only when asked for.
#[cfg(feature = "wgpu")]
fn wgpu_has_gpu() -> bool {
    use burn::tensor::backend::{Backend, Device};
    use burn_wgpu::WgpuDevice;
    let kinds =
        [WgpuDevice::DiscreteGpu(0), WgpuDevice::IntegratedGpu(0), WgpuDevice::VirtualGpu(0)];
    answers(|| {
        kinds
            .iter()
            .any(|kind| burn_wgpu::Wgpu::<f32, i32, u32>::device_count(kind.to_id().type_id) > 0)
    }) && wgpu_answers()
}

#[cfg(feature = "cuda")]
fn cuda_answers() -> bool {
    use burn::tensor::Tensor;
    answers(|| {
        let one = Tensor::<burn_cuda::Cuda, 1>::ones([1], &Default::default());
        (one * 2.0).into_data().iter::<f32>().eq([2.0])
    })
}
