#include "omp_spins.h"

#include <cstdlib>
#include <initializer_list>

namespace metroplex::apps {

bool spin_briefly() {
  for (const char* said : {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}) {
    if (std::getenv(said) != nullptr) return false;
  }
  return setenv("GOMP_SPINCOUNT", "2000", 0) == 0;
}

}  // namespace metroplex::apps
