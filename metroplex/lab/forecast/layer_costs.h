// Costs of a model's layers for one microbatch on a rank, from a trace of one layer of each form without pipeline and
// data parallelism.
#pragma once

#include <vector>

#include "forecast/layer_forms.h"
#include "forecast/search.h"

namespace metroplex::forecast {

// Costs of a layer, or sums over layers.
struct LayerCosts {
  double forward_s = 0, backward_s = 0;  // with exposed communication of the layer
  double exposed_s = 0;                  // included: exposed communication of both passes
  std::vector<double> link_s;            // of the layer's collectives, by domain of the cluster
  double activations = 0;                // bytes between forward and backward
  double params = 0, expert_params = 0;  // elements
  double rounded_weights = 0;            // bytes of kept rounded values

  double seconds() const { return forward_s + backward_s; }
};

struct MicrobatchCosts {
  std::vector<LayerCosts> layers;  // by form
  double embedding_s = 0;          // forward and backward
  double head_s = 0;               // with multi-token prediction and loss
  double embedding_params = 0;     // elements
  double head_params = 0;          // elements of the head and of multi-token prediction
  double border = 0;               // bytes between stages

  double ends_s() const { return embedding_s + head_s; }
};

// Returns sum[domain] + times * cost.link_s[domain] in `sum`.
void add_links(std::vector<double>& sum, const std::vector<double>& link_s, double times);

// counts: number of layers of each form.
LayerCosts sum_layers(const MicrobatchCosts& costs, const std::vector<double>& counts);

// Throws base::Error if the rules refuse the layers.
MicrobatchCosts measure_layers(const PlanRequest& request, const LayerForms& forms, const Layout& layout);

}  // namespace metroplex::forecast
