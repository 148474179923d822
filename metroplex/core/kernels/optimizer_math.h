// Selects the update of a range (adam.h, sgd.h, lion.h) by its arithmetic type, and asserts valid storage types.
#pragma once

#include "base/error.h"
#include "kernels/optimizer_step.h"

namespace metroplex::kernels {

// Asserts valid combinations of storage types; a violation is an internal bug.
inline void check_range(const OptimizerRange& range, int num_moments) {
  const bool wide = range.remainder == nullptr && range.main_number == Number::f64;
  MPX_ASSERT(range.n >= 0, "a range of ", range.n, " elements");
  MPX_ASSERT((range.main == nullptr) == (range.remainder != nullptr) || range.n == 0,
             "main or remainder, and not both");
  MPX_ASSERT(
      range.remainder == nullptr || (range.param_number == Number::bf16 && range.param != nullptr) || range.n == 0,
      "a remainder is that of a bf16 parameter");
  MPX_ASSERT(
      range.remainder != nullptr || wide || range.main_number == Number::f32 || range.main_number == Number::bf16,
      "a main parameter is f32, f64 or bf16");
  MPX_ASSERT((range.grad_number == Number::f64) == wide && range.grad_number != Number::block8,
             "a gradient is f32, bf16 or f16, and f64 with an f64 main parameter");
  MPX_ASSERT(
      range.param == nullptr || (!wide && range.param_number != Number::f64 && range.param_number != Number::block8),
      "a written parameter is f32, bf16 or f16, with an f32 or bf16 main parameter");
  const MomentArray* moments[] = {&range.first, &range.second};
  for (int i = 0; i < num_moments; ++i) {
    const MomentArray& m = *moments[i];
    MPX_ASSERT(m.data != nullptr || range.n == 0, "moment ", i, " of the ", num_moments, " that are read is missing");
    MPX_ASSERT((m.number == Number::f64) == wide && m.number != Number::f16,
               "a moment is f32, bf16 or block8, and f64 with an f64 main parameter");
    MPX_ASSERT(m.number != Number::block8 || m.scales != nullptr || range.n == 0, "block8 has scales");
  }
}

// Calls run.template operator()<Update>() with the update in the arithmetic type of the range.
template <class Run>
void with_update(const OptimizerRange& range, const AdamHyper&, const Run& run) {
  check_range(range, 2);
  range.main_number == Number::f64&& range.remainder == nullptr ? run.template operator()<AdamUpdate<double>>()
                                                                : run.template operator()<AdamUpdate<float>>();
}
template <class Run>
void with_update(const OptimizerRange& range, const LionHyper&, const Run& run) {
  check_range(range, 1);
  range.main_number == Number::f64&& range.remainder == nullptr ? run.template operator()<LionUpdate<double>>()
                                                                : run.template operator()<LionUpdate<float>>();
}
template <class Run>
void with_update(const OptimizerRange& range, const SgdHyper& hyper, const Run& run) {
  check_range(range, hyper.momentum == 0 ? 0 : 1);
  const bool wide = range.main_number == Number::f64 && range.remainder == nullptr;
  if (hyper.momentum == 0) {
    wide ? run.template operator()<SgdUpdate<double, false>>() : run.template operator()<SgdUpdate<float, false>>();
  } else {
    wide ? run.template operator()<SgdUpdate<double, true>>() : run.template operator()<SgdUpdate<float, true>>();
  }
}

}  // namespace metroplex::kernels
