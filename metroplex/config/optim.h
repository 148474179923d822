// Optimizer, learning-rate and weight-decay schedules. Lengths are in iterations or in samples, never both.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/choice.h"

namespace metroplex::config {

enum class LrDecay { constant, linear, cosine, inverse_square_root, WSD };
template <>
inline constexpr Word<LrDecay> kWords<LrDecay>[] = {{LrDecay::constant, "constant"},
                                                    {LrDecay::linear, "linear"},
                                                    {LrDecay::cosine, "cosine"},
                                                    {LrDecay::inverse_square_root, "inverse-square-root"},
                                                    {LrDecay::WSD, "WSD"}};

enum class WsdDecay { linear, cosine, exponential, minus_sqrt };
template <>
inline constexpr Word<WsdDecay> kWords<WsdDecay>[] = {{WsdDecay::linear, "linear"},
                                                      {WsdDecay::cosine, "cosine"},
                                                      {WsdDecay::exponential, "exponential"},
                                                      {WsdDecay::minus_sqrt, "minus_sqrt"}};

enum class WeightDecayIncr { constant, linear, cosine };
template <>
inline constexpr Word<WeightDecayIncr> kWords<WeightDecayIncr>[] = {{WeightDecayIncr::constant, "constant"},
                                                                    {WeightDecayIncr::linear, "linear"},
                                                                    {WeightDecayIncr::cosine, "cosine"}};

enum class MuonScale { spectral, unit_rms_norm, shape_scaling };
template <>
inline constexpr Word<MuonScale> kWords<MuonScale>[] = {{MuonScale::spectral, "spectral"},
                                                        {MuonScale::unit_rms_norm, "unit_rms_norm"},
                                                        {MuonScale::shape_scaling, "shape_scaling"}};

// Coefficients of Muon's Newton-Schulz iteration (optim/muon.h).
enum class MuonCoefficients { quintic, simple };
template <>
inline constexpr Word<MuonCoefficients> kWords<MuonCoefficients>[] = {{MuonCoefficients::quintic, "quintic"},
                                                                      {MuonCoefficients::simple, "simple"}};

enum class MainParamsDtype { fp32, bf16 };
template <>
inline constexpr Word<MainParamsDtype> kWords<MainParamsDtype>[] = {{MainParamsDtype::fp32, "fp32"},
                                                                    {MainParamsDtype::bf16, "bf16"}};

enum class MomentDtype { fp32, bf16, eight_bit };
template <>
inline constexpr Word<MomentDtype> kWords<MomentDtype>[] = {
    {MomentDtype::fp32, "fp32"}, {MomentDtype::bf16, "bf16"}, {MomentDtype::eight_bit, "8bit"}};

// Its keys, each with type, default and help: optim_keys.inc.
struct Optim {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/optim_keys.inc"
#undef KEY
};

// optim.param_groups: which parameters, by their global names, learn faster or slower or decay otherwise. A rule
// reads "PATTERN lr_mult=X wd_mult=Y start_wd=A end_wd=B"; the first whose pattern fits a name counts.

struct ParamGroupRule {
  std::string pattern;              // * stands for any text, ? for any one letter; must fit the whole name
  double lr_mult = 1.0;             // times the learning rate the parameter would have
  std::optional<double> wd_mult{};  // times its weight decay, whatever the parameter is; unset: 0 or 1 by its kind
  std::optional<double> start_wd{}, end_wd{};  // unset: optim.start_weight_decay and optim.end_weight_decay

  bool match(const std::string& name) const;
};

// Nothing when `text` is not a rule; `problem` says why.
std::optional<ParamGroupRule> read_param_group(const std::string& text, std::string& problem);

// All of optim.param_groups, in order. Throws base::Error("config") for one that cannot be read.
std::vector<ParamGroupRule> param_group_rules(const Optim& optim);

// The rule that counts for this parameter, or null.
const ParamGroupRule* find_param_group(const std::vector<ParamGroupRule>& rules, const std::string& name);

}  // namespace metroplex::config
