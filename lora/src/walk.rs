//! Names of parameters: the path of fields from a model's root, as Hugging Face writes its checkpoint keys.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, backend::Backend};

/// The current path of a walk over a module. Burn also enters the variants of enums; they are not part of a key.
#[derive(Debug, Default)]
struct Path(Vec<String>);

impl Path {
    fn enter(&mut self, name: &str, container: &str) {
        if !container.starts_with("Enum:") {
            self.0.push(name.to_string());
        }
    }

    fn exit(&mut self, container: &str) {
        if !container.starts_with("Enum:") {
            self.0.pop();
        }
    }

    fn key(&self) -> String {
        self.0.join(".")
    }
}

/// Visits each float parameter of a module, of any rank.
pub trait ParamVisitor<B: Backend> {
    /// Called once per parameter, in the order of the module's fields.
    fn param<const D: usize>(&mut self, name: &str, param: &Param<Tensor<B, D>>);
}

/// Calls `action` with every float parameter of `module` and its path.
pub fn for_each_param<B: Backend, M: Module<B>>(module: &M, action: &mut impl ParamVisitor<B>) {
    struct Walk<'a, A> {
        path: Path,
        action: &'a mut A,
    }
    impl<B: Backend, A: ParamVisitor<B>> ModuleVisitor<B> for Walk<'_, A> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.action.param(&self.path.key(), param);
        }
        fn enter_module(&mut self, name: &str, container_type: &str) {
            self.path.enter(name, container_type);
        }
        fn exit_module(&mut self, _name: &str, container_type: &str) {
            self.path.exit(container_type);
        }
    }
    module.visit(&mut Walk { path: Path::default(), action });
}

/// Changes each float parameter of a module, of any rank.
pub trait ParamMapper<B: Backend> {
    /// Called once per parameter, in the order of the module's fields.
    fn map<const D: usize>(
        &mut self,
        name: &str,
        param: Param<Tensor<B, D>>,
    ) -> Param<Tensor<B, D>>;
}

/// Replaces every float parameter of `module` by the result of `action`.
pub fn map_params<B: Backend, M: Module<B>>(module: M, action: &mut impl ParamMapper<B>) -> M {
    struct Walk<'a, A> {
        path: Path,
        action: &'a mut A,
    }
    impl<B: Backend, A: ParamMapper<B>> ModuleMapper<B> for Walk<'_, A> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            self.action.map(&self.path.key(), param)
        }
        fn enter_module(&mut self, name: &str, container_type: &str) {
            self.path.enter(name, container_type);
        }
        fn exit_module(&mut self, _name: &str, container_type: &str) {
            self.path.exit(container_type);
        }
    }
    module.map(&mut Walk { path: Path::default(), action })
}

/// Makes the parameters whose name `trainable` accepts trainable, and freezes all others.
pub fn set_trainable<B: Backend, M: Module<B>>(module: M, trainable: impl Fn(&str) -> bool) -> M {
    struct Flag<F>(F);
    impl<B: Backend, F: Fn(&str) -> bool> ParamMapper<B> for Flag<F> {
        fn map<const D: usize>(
            &mut self,
            name: &str,
            param: Param<Tensor<B, D>>,
        ) -> Param<Tensor<B, D>> {
            let wanted = (self.0)(name);
            param.map(|tensor| tensor.set_require_grad(wanted))
        }
    }
    map_params(module, &mut Flag(trainable))
}

/// Numbers of elements in a module: trainable ones and all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ParamCount {
    /// Elements that receive gradients.
    pub trainable: usize,
    /// All elements.
    pub total: usize,
}

impl<B: Backend> ParamVisitor<B> for ParamCount {
    fn param<const D: usize>(&mut self, _name: &str, param: &Param<Tensor<B, D>>) {
        let elements = param.shape().num_elements();
        self.total += elements;
        if param.is_require_grad() {
            self.trainable += elements;
        }
    }
}

/// Counts the float parameters of a module.
pub fn count_params<B: Backend, M: Module<B>>(module: &M) -> ParamCount {
    let mut count = ParamCount::default();
    for_each_param(module, &mut count);
    count
}
