// Compares a model with the model of the config.json that a family writes for it.
#include "hf/decoder.h"

#include "base/error.h"
#include "config/family.h"
#include "config/load.h"
#include "config/model_function.h"

namespace metroplex::hf {

bool represents(const Family& family, const config::Model& model) {
  if (const config::Family* ours = config::find_family(model.family); ours != nullptr && ours->top_query)
    return false;
  config::Model here = model, there;
  try {
    there = config::load("", read_config(family, family.config(model))).model;
  } catch (const base::Error&) {
    return false;  // the family rejects a value of its own config.json
  }
  here.mtp_num_layers = there.mtp_num_layers = 0;
  return config::differing_keys(here, there).empty();
}

}  // namespace metroplex::hf
