#include "step/step_errors.h"

#include <cmath>
#include <vector>

#include "base/error.h"
#include "comm/collectives.h"
#include "optim/clip.h"
#include "step/rounding_figures.h"
#include "step/step.h"

namespace metroplex::step {

namespace {

// Returns the index of the microbatch whose gradients are not finite, or -1 if it does not recur. Collective. Runs
// each microbatch alone. An interleaved schedule cannot run a single microbatch, so it runs copies of one. With
// hybrid context parallelism, ranks have different microbatches: all run again, and -1 is returned. The rounding of
// operands is measured until the process ends.
int64_t find_bad_microbatch(Assembly& assembly, const StepInput& input, const at::Tensor& factors) {
  if (assembly.model.rounding_meter) assembly.model.rounding_meter->start();
  if (input.batches.at(0).sequence.context_ranks > 0) {
    begin_gradients(assembly.model, static_cast<int64_t>(input.batches.size()));
    assembly.run_pipeline(input.batches, factors, true);
    finish_gradients(assembly.process, assembly.model, assembly.optimization);
    return -1;
  }
  const size_t copies = assembly.model.stages.size() > 1 ? input.batches.size() : 1;
  for (size_t m = 0; m < input.batches.size(); ++m) {
    const at::Tensor one = factors.narrow(0, static_cast<int64_t>(m), 1).div(static_cast<double>(copies));
    const std::vector batches(copies, input.batches[m]);
    begin_gradients(assembly.model, static_cast<int64_t>(copies));
    assembly.run_pipeline(batches, one.repeat({static_cast<int64_t>(copies)}), true);
    finish_gradients(assembly.process, assembly.model, assembly.optimization);
    if (optim::gradient_stats(gradient_norm_parts(assembly.process, assembly.model)).num_nonfinite > 0)
      return static_cast<int64_t>(m);
  }
  return -1;
}

// Returns the first rounded operand of the last run that is not finite, as a part of a message. Collective.
std::string operand_text(const Assembly& assembly) {
  if (!assembly.model.rounding_meter) return "";
  const std::string operand =
      first_nonfinite_operand(assembly.process.config.precision, reduce_rounding(assembly.process, assembly.model));
  return operand.empty() ? "" : "; the first operand that is not finite is " + operand;
}

}  // namespace

void throw_nonfinite_loss(Assembly& assembly, const StepInput& input, const double* losses) {
  const ProcessContext& process = assembly.process;
  if (assembly.model.rounding_meter) find_bad_microbatch(assembly, input, assembly.step_buffers.loss_factors);
  const std::string operand = operand_text(assembly);
  const auto count = static_cast<int64_t>(input.batches.size());
  for (int64_t m = 0; m < count; ++m) {
    MPX_CHECK(std::isfinite(losses[m]), "numerics", "the loss is ", losses[m], " at iteration ", input.iteration,
              ", microbatch ", m, ", on rank ", process.world->rank(), " (",
              process.world->grid().format_coordinates(process.world->rank()), ")", operand,
              "; nothing was updated. Lower optim.lr, check the data of this step, or resume from an earlier "
              "checkpoint");
  }
  comm::barrier(process.groups().world);  // throws after the rank with the non-finite loss has thrown
  MPX_CHECK(
      false, "numerics", "the loss of another rank is not finite at iteration ", input.iteration, operand,
      "; nothing was updated. Lower optim.lr, check the data of this step, or resume from an earlier checkpoint");
}

void throw_nonfinite_grad(Assembly& assembly, const StepInput& input, const at::Tensor& factors) {
  const int64_t m = find_bad_microbatch(assembly, input, factors);
  const std::string operand = operand_text(assembly);
  const comm::World& world = *assembly.process.world;
  const distributed::Shard* const found = optim::first_nonfinite(assembly.optimization.trained, world.target());
  const std::string mine = found == nullptr ? std::string()
                                            : base::concat(found->param->name, " on rank ", world.rank(), " (",
                                                           world.grid().format_coordinates(world.rank()), ")");
  std::string where = "a gradient that was finite when the step was repeated";
  for (const std::string& text : comm::all_gather_strings(mine, world.groups().world)) {
    if (text.empty()) continue;
    where = text;
    break;
  }
  const std::string batch = m < 0 ? std::string() : base::concat(", microbatch ", m);
  MPX_CHECK(false, "numerics", "the gradient of ", where, " is not finite at iteration ", input.iteration, batch,
            operand,
            "; nothing was updated. Lower optim.lr, check the data of this step, or resume from an earlier "
            "checkpoint");
}

}  // namespace metroplex::step
