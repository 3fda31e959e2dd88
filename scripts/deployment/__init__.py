# The parts of scripts/try_deployment.py, which alone imports them: one file for each thing that is deployed.
