target_sources(_core PRIVATE
  src/rules/decision.cpp
)
