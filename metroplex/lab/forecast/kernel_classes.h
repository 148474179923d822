// Names of the kernel classes of a step budget.
#pragma once

namespace metroplex::forecast::classes {

constexpr const char* kProducts = "matrix products";
constexpr const char* kExpertProducts = "expert products";
constexpr const char* kAttention = "attention";
constexpr const char* kNorms = "norms";
constexpr const char* kSums = "bias and norm weight sums";
constexpr const char* kActivations = "activations";
constexpr const char* kRope = "RoPE";
constexpr const char* kResidual = "residual adds";
constexpr const char* kCrossEntropy = "cross entropy";
constexpr const char* kEmbedding = "embedding";
constexpr const char* kRouting = "routing";
constexpr const char* kPermutation = "permutation";
constexpr const char* kExpertGradients = "expert weight gradients";
constexpr const char* kOptimizer = "optimizer";
constexpr const char* kGradientNorm = "gradient norm";
constexpr const char* kCopies = "copies and casts";
constexpr const char* kFills = "fills";
constexpr const char* kElementwise = "elementwise";
constexpr const char* kOther = "other libtorch";

}  // namespace metroplex::forecast::classes
