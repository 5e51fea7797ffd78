target_sources(_core PRIVATE
  src/optim/bindings.cpp
  src/optim/plan.cpp
)
